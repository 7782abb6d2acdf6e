"""Datasets in the form of the Hugging Face hub, from folders made with `save_to_disk`."""

import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedwcm.data import load_dataset, load_rows, split


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'fedwcm\[hub\]'"):
        load_dataset("hub:someone/something")


@pytest.fixture
def hf() -> Any:
    return pytest.importorskip("datasets", reason="the package datasets (extra `hub`) is not installed")


def image_rows(hf: Any, count: int) -> Any:
    """Make `count` images whose shade is their row, with two classes and three writers."""
    features = hf.Features(
        {"image": hf.Image(), "label": hf.ClassLabel(names=["odd", "even"]), "writer": hf.Value("string")}
    )
    content = {
        "image": [Image.new("L", (5, 4), i) for i in range(count)],
        "label": [i % 2 for i in range(count)],
        "writer": [f"w{i % 3}" for i in range(count)],
    }
    return hf.Dataset.from_dict(content, features=features)


def table_rows(hf: Any, count: int) -> Any:
    content = {
        "a": [float(i) for i in range(count)],
        "b": [i % 2 == 0 for i in range(count)],
        "kind": [("x", "y")[i % 2] for i in range(count)],
    }
    return hf.Dataset.from_dict(content)


def test_images_are_read_with_their_class_names_and_clients(hf: Any, tmp_path: Path) -> None:
    hf.DatasetDict({"train": image_rows(hf, 8), "test": image_rows(hf, 4)}).save_to_disk(tmp_path / "set")
    data = load_dataset(f"hub:{tmp_path / 'set'}", client="writer")
    assert data.name == "set"
    assert data.classes == ("odd", "even")
    assert data.input_shape == (1, 4, 5)
    assert data.x_train[:, 0, 0, 0].tolist() == list(range(8))
    assert data.y_test.tolist() == [0, 1, 0, 1]
    assert data.client_names == ("w0", "w1", "w2")
    assert data.client_ids is not None
    assert data.client_ids.tolist() == [i % 3 for i in range(8)]


def test_every_split_is_the_part_that_it_is_called(hf: Any, tmp_path: Path) -> None:
    sizes = {"train": 8, "validation": 6, "test": 4, "extra": 3}
    hf.DatasetDict({name: image_rows(hf, n) for name, n in sizes.items()}).save_to_disk(tmp_path / "set")
    with pytest.warns(UserWarning, match="splits 'extra' are ignored"):
        data = load_dataset(f"hub:{tmp_path / 'set'}")
    assert data.y_val is not None
    assert (len(data.y_train), len(data.y_val), len(data.y_test)) == (8, 6, 4)


def test_columns_are_fitted_to_the_training_split_wherever_it_stands(hf: Any, tmp_path: Path) -> None:
    splits = {
        name: hf.Dataset.from_dict({"size": [value] * 3 + [None], "kind": ["x", "y"] * 2})
        for name, value in {"test": 100.0, "validation": 50.0, "train": 1.0}.items()
    }
    hf.DatasetDict(splits).save_to_disk(tmp_path / "set")
    data = load_dataset(f"hub:{tmp_path / 'set'}", label="kind", impute="median")
    assert data.x_train[:, 0].tolist() == [1.0] * 4
    assert data.x_test[:, 0].tolist() == [100.0] * 3 + [1.0]


def test_a_hub_set_is_read_by_the_schema_of_another(hf: Any, tmp_path: Path) -> None:
    table_rows(hf, 20).save_to_disk(tmp_path / "set")
    table_rows(hf, 6).select_columns(["b", "a"]).save_to_disk(tmp_path / "new")
    data = load_dataset(f"hub:{tmp_path / 'set'}", label="kind")
    rows = load_rows(f"hub:{tmp_path / 'new'}", data.schema, labelled=False)
    assert rows.x.tolist() == [[float(i), float(i % 2 == 0)] for i in range(6)]
    assert rows.y is None


def test_a_chosen_part_of_the_rows_is_read_as_chosen(hf: Any, tmp_path: Path) -> None:
    table_rows(hf, 20).select(range(19, 5, -1)).save_to_disk(tmp_path / "set")
    data = load_dataset(f"hub:{tmp_path / 'set'}", label="kind")
    assert sorted([*data.x_train[:, 0], *data.x_test[:, 0]]) == list(range(6, 20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--label NAME"),
        ({"label": "kin"}, r"no column 'kin' \(did you mean 'kind'\?\)"),
        ({"label": "kind", "client": "who"}, "no column 'who'"),
        ({"label": "kind", "drop": ["c"]}, "matches no feature column"),
        ({"label": "kind", "split": "a"}, "--split a"),
    ],
)
def test_wrong_columns_are_named(hf: Any, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    table_rows(hf, 20).save_to_disk(tmp_path / "set")
    with pytest.raises(ValueError, match=message):
        load_dataset(f"hub:{tmp_path / 'set'}", **options)


def test_a_set_without_a_train_split_is_refused(hf: Any, tmp_path: Path) -> None:
    hf.DatasetDict({"other": image_rows(hf, 4)}).save_to_disk(tmp_path / "set")
    with pytest.raises(ValueError, match="no split 'train'; its splits are other"):
        load_dataset(f"hub:{tmp_path / 'set'}")


def test_two_class_columns_ask_for_a_choice(hf: Any, tmp_path: Path) -> None:
    rows = image_rows(hf, 8).cast_column("writer", hf.ClassLabel(names=["w0", "w1", "w2"]))
    rows.save_to_disk(tmp_path / "set")
    with pytest.raises(ValueError, match="several ClassLabel columns, label, writer: pass --label NAME"):
        load_dataset(f"hub:{tmp_path / 'set'}")


def test_a_folder_that_was_not_saved_is_refused(hf: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be read"):
        load_dataset(f"hub:{tmp_path}")


def test_an_image_column_may_be_left_out(hf: Any, tmp_path: Path) -> None:
    rows = image_rows(hf, 12).add_column("weight", [float(i) for i in range(12)])
    rows.save_to_disk(tmp_path / "set")
    data = load_dataset(f"hub:{tmp_path / 'set'}", drop=["image", "writer"])
    assert data.feature_names == ("weight",)
    assert data.encoding.ignored == ("image", "writer")


def test_the_split_from_which_columns_are_learnt_is_the_one_that_is_trained_on(
    hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[int] = []
    draw = split.stratified_split
    monkeypatch.setattr(split, "stratified_split", lambda *values: draws.append(1) or draw(*values))  # type: ignore[func-returns-value]
    table_rows(hf, 40).save_to_disk(tmp_path / "set")
    for source in (table_rows(hf, 40), table_rows(hf, 40).to_pandas(), f"hub:{tmp_path / 'set'}"):
        assert len(load_dataset(source, label="kind").x_test) == 8
    assert len(draws) == 3


def test_rows_without_labels_have_the_ids_of_their_column(hf: Any) -> None:
    for rows, label in (
        (image_rows(hf, 8), "label"),
        (table_rows(hf, 8).add_column("writer", list("abcdefgh")), "kind"),
    ):
        schema = load_dataset(rows, label=label, drop=["writer"]).schema
        assert len(load_rows(rows, schema, labelled=False).x) == 8
        read = load_rows(rows, schema, labelled=False, id="writer")
        assert read.ids == tuple(rows["writer"])
