"""Text from elsewhere reaches terminals, logs and spreadsheets as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fedwcm
from fedwcm.api.evaluation import Predictions
from fedwcm.data import load_dataset
from fedwcm.utils.json_record import JsonRecord
from fedwcm.utils.text import csv_cells, duration, escape_controls, rough_duration

CLEAR_SCREEN = "\x1b[2J"


@dataclass(frozen=True, kw_only=True)
class _Record(JsonRecord):
    """What a file of a run that somebody sent may say."""

    name: str
    reasons: Mapping[str, str]


def test_only_text_that_would_be_a_formula_gets_an_apostrophe() -> None:
    formulas = ["=1+1", "+cmd", "-cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1"]
    assert csv_cells(formulas) == [f"'{formula}" for formula in formulas]
    harmless = ["fedwcm", "-0.5", "+1e-3", "-", "", "a=b", -0.5, None, "–"]
    assert csv_cells(harmless) == harmless


def test_whatever_writes_csv_escapes_formulas() -> None:
    files = {path.name: path.read_text(encoding="utf-8") for path in Path(fedwcm.__file__).parent.rglob("*.py")}
    writers = {name for name, text in files.items() if "csv.writer(" in text}
    assert writers
    assert not [name for name in writers if "csv_cells(" not in files[name]]


def test_predictions_hold_no_formula(tmp_path: Path) -> None:
    named = Predictions(("=cmd()", "b"), np.array([[0.9, 0.1]], dtype=np.float32), ("@row",), "=head")
    named.write(tmp_path / "predictions.csv")
    head, row = (tmp_path / "predictions.csv").read_text(encoding="utf-8").splitlines()
    assert head.startswith("'=head,predicted")
    assert row.startswith("'@row,'=cmd()")


def test_control_characters_are_escaped_and_all_other_characters_stay() -> None:
    assert escape_controls(f"a{CLEAR_SCREEN}\n\x9b") == "a\\x1b[2J\\n\\x9b"
    facts = {"name": f"x{CLEAR_SCREEN}", "reasons": {f"k{CLEAR_SCREEN}": "\a"}}
    record = _Record.from_json(facts, "here")
    assert (record.name, record.reasons) == ("x\\x1b[2J", {"k\\x1b[2J": "\\x07"})
    assert escape_controls("क्‍ष é\xa0—🏥") == "क्‍ष é\xa0—🏥"


@pytest.mark.parametrize(("column", "kind"), [("label", "class"), ("site", "client")])
def test_names_with_control_characters_are_refused(column: str, kind: str, tmp_path: Path) -> None:
    rows = [f"{i},{name},{site}" for i in range(20) for name, site in (("a", "one"), ("b", "two"))]
    text = "\n".join(["x,label,site", *rows, *[f"7,{'c' + CLEAR_SCREEN},one"] * 5 * (column == "label")])
    if column == "site":
        text = text.replace("two", f"two{CLEAR_SCREEN}")
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"the {kind} '\w+\\x1b\[2J' has a control character"):
        load_dataset(tmp_path / "rows.csv", label="label", client="site")


def test_to_the_second_or_to_the_minute() -> None:
    assert [duration(s) for s in (0.2, 59, 200, 7500)] == ["0 s", "59 s", "3 min 20 s", "2 h 05 min"]


def test_two_digits_of_the_largest_unit_that_there_are_two_of() -> None:
    seconds = (0.0, 0.347, 5, 9.97, 119, 150, 9000, 200_000, None)
    texts = ["0 s", "0.35 s", "5 s", "10 s", "119 s", "2.5 min", "2.5 h", "2.3 days", "unknown"]
    assert [rough_duration(each) for each in seconds] == texts
