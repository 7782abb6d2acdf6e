"""What is written: labels and clients keep their text where numbers would not show it, numbers have points."""

from pathlib import Path

import pandas as pd
import pytest

from fedwcm.data import load_dataset


@pytest.mark.parametrize(
    ("column", "values", "names"),
    [
        ("who", ["01", "1", "02", "2"], ("01", "02", "1", "2")),
        ("who", ["001", "002"], ("001", "002")),
        ("who", [" 3", " 4"], ("3", "4")),
        ("who", ["10", "9"], ("9", "10")),
        ("kind", ["1e1", "10", "7", "007"], ("007", "10", "1e1", "7")),
        ("kind", ["1.0", "0.0"], ("0", "1")),
        ("kind", ["true", "True", "false"], ("False", "True")),
    ],
)
def test_labels_and_clients_that_are_written_differently_are_different(
    column: str, values: list[str], names: tuple[str, ...], tmp_path: Path
) -> None:
    columns = {"x": [str(i) for i in range(40)], "who": ["a", "b"] * 20, "kind": ["c", "d", "d", "c"] * 10}
    columns[column] = [values[i % len(values)] for i in range(40)]
    pd.DataFrame(columns).to_csv(tmp_path / "own.csv", index=False)
    data = load_dataset(tmp_path / "own.csv", label="kind", client="who")
    assert (data.client_names if column == "who" else data.classes) == names


@pytest.mark.parametrize("texts", [["0,5", "1,25", "3"], ["1,234,567", "12,345", "1,000.5"], ["-0,5", "", "+1,0"]])
def test_numbers_with_commas_are_no_categories(texts: list[str], tmp_path: Path) -> None:
    pd.DataFrame({"x": texts * 4, "kind": [0, 1] * 6}).to_csv(tmp_path / "own.csv", index=False)
    with pytest.raises(ValueError, match=r"'x' writes numbers with commas .*write decimals with a point"):
        load_dataset(tmp_path / "own.csv", label="kind")


@pytest.mark.filterwarnings("ignore:own. 2 of 2 test rows equal")
def test_codes_that_are_joined_by_commas_are_categories(tmp_path: Path) -> None:
    pd.DataFrame({"x": ["a,1", "b,2", "1,2"] * 4, "kind": [0, 1] * 6}).to_csv(tmp_path / "own.csv", index=False)
    assert load_dataset(tmp_path / "own.csv", label="kind").feature_names == ("x=1,2", "x=a,1", "x=b,2")
