"""Other data for a trained model is read by the schema of its training data, or refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, parquet

from fedwcm.data import Column, Dataset, DatasetSchema, Encoding, load_dataset, load_rows

RNG = np.random.default_rng(0)
COUNT = 40


def columns(count: int = COUNT) -> dict[str, Any]:
    return {
        "age": RNG.integers(20, 60, count),
        "height": RNG.normal(size=count).round(3),
        "colour": [("red", "blue", "green")[i % 3] for i in range(count)],
        "kind": [("cat", "dog")[i % 2] for i in range(count)],
        "id": [f"row{i}" for i in range(count)],
    }


def write(path: Path, table: dict[str, Any]) -> Path:
    csv.write_csv(pa.table(table), path)
    return path


@pytest.fixture
def trained(tmp_path: Path) -> Dataset:
    return load_dataset(write(tmp_path / "train.csv", columns()), label="kind", drop=["id"])


# The schema itself --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:DataFrame")
def test_the_recipe_for_flower_makes_a_schema_from_all_rows(tmp_path: Path) -> None:
    """docs/flower.md: with a fifth held out, a category or a class of one row would be lost in some draws."""
    for rare in range(COUNT):
        rows = pd.DataFrame(columns()).drop(columns="id")
        rows.loc[rare, ["colour", "kind"]] = "gold", "owl"
        both = pd.concat([rows.assign(part="train"), rows.assign(part="test")])
        schema = load_dataset(both, label="kind", split="part").schema
        assert schema.classes == ("cat", "dog", "owl")
        assert schema.encoding.columns[-1].categories == ("blue", "gold", "green", "red")
    rows.to_csv(tmp_path / "site.csv", index=False)
    assert len(load_rows(tmp_path / "site.csv", schema).x) == COUNT


def test_a_schema_survives_json(trained: Dataset, tmp_path: Path) -> None:
    schema = trained.schema
    assert schema.classes == ("cat", "dog")
    assert schema.encoding.label == "kind"
    assert trained.feature_names == ("age", "height", "colour=blue", "colour=green", "colour=red")
    assert DatasetSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    images = Dataset(
        "photos",
        *(np.zeros((2, 4, 5, 3), np.uint8), np.array([0, 1])) * 2,
        classes=("a", "b"),
        encoding=Encoding(image_size=4),
    )
    assert images.schema == DatasetSchema(("a", "b"), (3, 4, 5), "uint8", Encoding(image_size=4))
    assert DatasetSchema.from_json(json.loads(json.dumps(images.schema.to_json()))) == images.schema


@pytest.mark.parametrize(
    "change",
    [
        {"classes": "ab"},
        {"classes": [1, 2]},
        {"input_shape": ["4"]},
        {"dtype": 3},
        {"encoding": []},
        {"encoding": {"columns": [{}]}},
        {"encoding": {"columns": [{"name": "a", "kind": "text"}]}},
        {"encoding": {"columns": [{"name": "a", "fill": [1]}]}},
    ],
)
def test_what_is_no_schema_is_refused(trained: Dataset, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"the schema of a data set: (classes|input_shape|dtype|encoding)"):
        DatasetSchema.from_json({**trained.schema.to_json(), **change})
    with pytest.raises(ValueError, match="the schema of a data set: None is not an object"):
        DatasetSchema.from_json(None)


def test_feature_names_must_fit_the_samples() -> None:
    x, y = np.zeros((2, 3), np.float32), np.array([0, 1])
    with pytest.raises(ValueError, match="1 feature names for samples of"):
        Dataset("toy", x, y, x, y, ("a", "b"), encoding=Encoding((Column("a"),)))


# Tables -------------------------------------------------------------------------------------------


def test_reordered_columns_give_identical_inputs(trained: Dataset, tmp_path: Path) -> None:
    table = columns()
    write(tmp_path / "new.csv", table)
    write(tmp_path / "turned.csv", dict(reversed(table.items())))
    straight, turned = (load_rows(tmp_path / name, trained.schema) for name in ("new.csv", "turned.csv"))
    assert np.array_equal(straight.x, turned.x)
    assert straight.x[:, 0].tolist() == table["age"].tolist()
    assert straight.y is not None
    assert straight.y.tolist() == [i % 2 for i in range(COUNT)]
    assert (straight.part, straight.ids) == ("all", None)


def test_columns_are_encoded_as_in_training_even_where_categories_are_absent(
    trained: Dataset, tmp_path: Path
) -> None:
    table = columns(4) | {"colour": ["red"] * 4, "kind": ["dog"] * 4}
    rows = load_rows(write(tmp_path / "new.csv", table), trained.schema)
    assert rows.x[:, 2:].tolist() == [[0, 0, 1]] * 4
    assert rows.y is not None
    assert rows.y.tolist() == [1] * 4


def test_a_table_for_a_model_of_arrays_is_refused_as_such(tmp_path: Path) -> None:
    arrays = load_dataset((np.arange(24.0).reshape(12, 2), np.arange(12) % 2))
    with pytest.raises(ValueError, match=r"is a table, but the model was trained on arrays .*\.npz"):
        load_rows(write(tmp_path / "new.csv", columns()), arrays.schema, label="kind")


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"height": None}, "'height' is missing$"),
        ({"height": "hieght"}, r"'height' is missing \(renamed to 'hieght'\?\); 'hieght' not known to the model"),
        (
            {"more": "age"},
            r"other columns .*: 'more' not known to the model \(leave out with --drop, drop=\[…\]\)",
        ),
        ({"kind": "sort"}, r"no column 'kind'"),
    ],
)
def test_missing_extra_and_renamed_columns_are_named(
    trained: Dataset, tmp_path: Path, renamed: dict[str, str | None], message: str
) -> None:
    table = columns()
    for old, new in renamed.items():
        if old not in table:
            table[old] = table[str(new)]
        elif new is None:
            del table[old]
        else:
            table[new] = table.pop(old)
    with pytest.raises(ValueError, match=message):
        load_rows(write(tmp_path / "new.csv", table), trained.schema)


def test_an_extra_column_may_be_dropped_and_an_ignored_one_be_absent(trained: Dataset, tmp_path: Path) -> None:
    table = columns()
    table["more"] = table.pop("id")
    rows = load_rows(write(tmp_path / "new.csv", table), trained.schema, drop=["more"])
    assert rows.x.shape == (COUNT, 5)


def test_rows_without_labels_are_read_in_order(trained: Dataset, tmp_path: Path) -> None:
    table = columns()
    del table["kind"]
    path = write(tmp_path / "new.csv", table)
    rows = load_rows(path, trained.schema, labelled=False)
    assert rows.y is None
    assert rows.x[:, 0].tolist() == table["age"].tolist()
    with pytest.raises(ValueError, match="no column 'kind'"):
        load_rows(path, trained.schema)


def test_the_test_part_is_taken_where_there_is_one_and_everything_on_request(
    trained: Dataset, tmp_path: Path
) -> None:
    part = ["test", "train", "val", "test"] * 10
    path = write(tmp_path / "new.csv", columns() | {"part": part})
    rows = load_rows(path, trained.schema, split="part")
    assert (rows.part, len(rows.x)) == ("test", 20)
    every = load_rows(path, trained.schema, split="part", part="all")
    assert (every.part, len(every.x)) == ("all", COUNT)
    assert np.array_equal(every.x[[0, 3]], rows.x[:2]), "in the order of the file"
    only = write(tmp_path / "only.csv", columns() | {"part": ["test"] * COUNT})
    assert len(load_rows(only, trained.schema, split="part").x) == COUNT


def test_a_class_that_the_model_does_not_know_is_named(trained: Dataset, tmp_path: Path) -> None:
    table = columns() | {"kind": ["owl", "dog"] * 20}
    with pytest.raises(ValueError, match="does not know: 'owl'; it knows 'cat', 'dog'"):
        load_rows(write(tmp_path / "new.csv", table), trained.schema)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": ["tall"] * COUNT}, r"'height' is of type string \(for example 'tall'\): it must be numeric"),
        ({"colour": list(range(COUNT))}, "'colour' holds numbers: the model takes categories, such as 'blue'"),
        ({"colour": [0.5] * COUNT}, "'colour' holds numbers: the model takes categories, such as 'blue'"),
        ({"height": [None] + [1.0] * (COUNT - 1)}, "'height', row 1: the value is missing"),
        ({"height": [float("inf")] * COUNT}, "'height', row 1: the value is inf"),
    ],
)
def test_values_of_another_kind_are_refused(
    trained: Dataset, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_rows(write(tmp_path / "new.csv", columns() | change), trained.schema)


def test_gaps_are_filled_with_the_values_of_training(tmp_path: Path) -> None:
    path = write(tmp_path / "train.csv", {"x": [1.0, 2.0, 9.0] * 10, "y": [0, 1] * 15})
    data = load_dataset(path, label="y", impute="median")
    new = write(tmp_path / "new.csv", {"x": [None, 50.0, 60.0], "y": [0, 1, 1]})
    assert load_rows(new, data.schema).x[:, 0].tolist() == [data.encoding.columns[0].fill, 50.0, 60.0]


def stored(folder: Path, form: str, table: dict[str, Any]) -> Any:
    """A table in one of the forms in which tables are read."""
    path = folder / f"new.{form}"
    match form:
        case "DataFrame":
            return pd.DataFrame(table)
        case "parquet":
            parquet.write_table(pa.table(table), path)
        case "jsonl":
            rows = (dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True))
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case _:
            csv.write_csv(pa.table(table), path, csv.WriteOptions(delimiter="\t" if form == "tsv" else ","))
    return path


FORMS = ["csv", "tsv", "jsonl", "parquet", "DataFrame"]


@pytest.mark.parametrize("form", FORMS)
def test_columns_without_any_value_are_filled_in(tmp_path: Path, form: str) -> None:
    table = {"x": [1.0, 2.0, 9.0] * 10, "colour": ["red", "red", None] * 10, "y": [0, 1] * 15}
    data = load_dataset(write(tmp_path / "train.csv", table), label="y", impute="median")
    rows = load_rows(stored(tmp_path, form, {"x": [None], "colour": [None], "y": [1]}), data.schema)
    assert rows.x.tolist() == [[data.encoding.columns[0].fill, 1.0]]
    strict = load_dataset(write(tmp_path / "strict.csv", table | {"colour": ["red"] * 30}), label="y")
    with pytest.raises(ValueError, match=r"'x', row 1: .* missing; the model was trained without --impute"):
        load_rows(stored(tmp_path, form, {"x": [None], "colour": ["red"], "y": [1]}), strict.schema)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", ["True", "2021-01-01", "12:30:00"])
def test_a_category_is_text_whatever_the_values_of_a_file_look_like(tmp_path: Path, form: str, value: str) -> None:
    table = {"colour": ["red", value] * 20, "y": [0, 0, 1, 1] * 10}
    data = load_dataset(write(tmp_path / "train.csv", table), label="y")
    rows = load_rows(stored(tmp_path, form, {"colour": [value], "y": [1]}), data.schema)
    assert rows.x.tolist() == [[float(name == f"colour={value}") for name in data.feature_names]]


def test_truth_values_are_the_categories_of_their_names(tmp_path: Path) -> None:
    table = {"colour": ["red", "True"] * 20, "y": [0, 0, 1, 1] * 10}
    data = load_dataset(write(tmp_path / "train.csv", table), label="y")
    rows = load_rows(pd.DataFrame({"colour": [True, None], "y": [1, 1]}).iloc[:1], data.schema)
    assert rows.x.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("form", FORMS)
def test_labels_are_text_if_they_were(tmp_path: Path, form: str) -> None:
    table = {"x": np.arange(60.0), "kind": ["01", "2021-01-01", "x1"] * 20}
    data = load_dataset(write(tmp_path / "train.csv", table), label="kind")
    new = {"x": [1.0, 2.0], "kind": ["2021-01-01", "2021-01-01"]}
    assert load_rows(stored(tmp_path, form, new), data.schema).y.tolist() == [1, 1]
    new = {"x": [1.0, 2.0], "group": ["01", "01"]}
    assert load_rows(stored(tmp_path, form, new), data.schema, label="group").y.tolist() == [0, 0]


@pytest.mark.parametrize(("labels", "written"), [([0, 1], "01"), ([True, False], "true")])
def test_labels_that_were_numbers_or_truth_values_stay_so(tmp_path: Path, labels: list[Any], written: str) -> None:
    data = load_dataset(write(tmp_path / "train.csv", {"x": np.arange(40.0), "y": labels * 20}), label="y")
    (tmp_path / "new.csv").write_text(f"x,y\n1.0,{written}\n")
    assert load_rows(tmp_path / "new.csv", data.schema).y.tolist() == [1]


def test_columns_are_chosen_from_the_whole_table_in_the_same_way(trained: Dataset, tmp_path: Path) -> None:
    """Reading the training file itself by its schema gives the training inputs back."""
    whole = load_rows(tmp_path / "train.csv", trained.schema)
    both = np.concatenate([trained.x_train, trained.x_test])
    assert sorted(map(tuple, whole.x.tolist())) == sorted(map(tuple, both.tolist()))


# Arrays and images --------------------------------------------------------------------------------


def test_arrays_are_matched_by_shape_and_classes_by_name(tmp_path: Path) -> None:
    x = RNG.normal(size=(20, 3)).astype(np.float32)
    np.savez(tmp_path / "train.npz", x=x, y=np.array(["a", "b"] * 10))
    data = load_dataset(tmp_path / "train.npz")
    np.savez(tmp_path / "new.npz", x=x[:4], y=np.array(["b"] * 4))
    rows = load_rows(tmp_path / "new.npz", data.schema)
    assert rows.y is not None
    assert rows.y.tolist() == [1] * 4
    np.savez(tmp_path / "bare.npz", x=x[:4])
    assert load_rows(tmp_path / "bare.npz", data.schema, labelled=False).x.shape == (4, 3)
    with pytest.raises(ValueError, match="lacks y"):
        load_rows(tmp_path / "bare.npz", data.schema)
    np.savez(tmp_path / "wide.npz", x=np.zeros((4, 5)), y=np.array(["b"] * 4))
    with pytest.raises(ValueError, match=r"have the shape \(5,\), those of the model \(3,\)"):
        load_rows(tmp_path / "wide.npz", data.schema)


def test_only_a_test_part_is_enough_for_a_trained_model(tmp_path: Path) -> None:
    x, y = np.zeros((4, 2), np.float32), np.arange(4) % 2
    np.savez(tmp_path / "train.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    np.savez(tmp_path / "test.npz", x_test=x, y_test=y)
    rows = load_rows(tmp_path / "test.npz", load_dataset(tmp_path / "train.npz").schema)
    assert (rows.part, len(rows.x)) == ("test", 4)
    with pytest.raises(ValueError, match="nothing to train on"):
        load_dataset(tmp_path / "test.npz")


def photo(path: Path, size: tuple[int, int], colour: tuple[int, int, int] | int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def test_images_are_brought_to_the_size_and_channels_of_training(tmp_path: Path) -> None:
    for i in range(4):
        photo(tmp_path / f"train/{'ab'[i % 2]}/{i}.png", (10 + i, 20), (i, 0, 0))
    data = load_dataset(tmp_path / "train", image_size=8, test_fraction=0.5)
    assert data.input_shape == (3, 8, 8)
    photo(tmp_path / "new/b/0.png", (30, 9), 77)
    rows = load_rows(tmp_path / "new", data.schema)
    assert rows.x.shape == (1, 8, 8, 3)
    assert (rows.x == 77).all()
    assert rows.ids == ("b/0.png",)
    assert rows.y is not None
    assert rows.y.tolist() == [1]


def test_a_flat_folder_of_unlabelled_images_is_read_with_their_names(tmp_path: Path) -> None:
    for i in range(4):
        photo(tmp_path / f"train/{'ab'[i % 2]}/{i}.png", (8, 8), i)
        photo(tmp_path / f"new/deep/{i}.png", (8, 8), i)
    data = load_dataset(tmp_path / "train", test_fraction=0.5)
    rows = load_rows(tmp_path / "new", data.schema, labelled=False)
    assert rows.ids == tuple(f"deep/{i}.png" for i in range(4))
    assert rows.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
