"""Tables as people have them: other files and encodings, categories, gaps, vectors, images, chosen columns."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from fedwcm.config.flags import column_names, config_from
from fedwcm.data import Column, load_dataset, load_rows

COUNT = 12


def csv_text(delimiter: str = ",") -> str:
    lines = [("age", "sort", "kind"), *((i, "xyz"[i % 3], ("cat", "dog")[i % 2]) for i in range(COUNT))]
    return "".join(delimiter.join(map(str, line)) + "\n" for line in lines)


def json_lines() -> str:
    lines = [{"age": i, "sort": "xyz"[i % 3], "kind": ("cat", "dog")[i % 2]} for i in range(COUNT)]
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.csv", csv_text().encode()),
        ("own.tsv", csv_text("\t").encode()),
        ("own.csv.gz", gzip.compress(csv_text().encode())),
        ("own.TSV.GZ", gzip.compress(csv_text("\t").encode())),
        ("own.jsonl", json_lines().encode()),
        ("own.ndjson", json_lines().encode()),
        ("own.jsonl.gz", gzip.compress(json_lines().encode())),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # a compressed file holds the time of its making
)
def test_every_kind_of_text_file_gives_the_same_data(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "reference.csv").write_text(csv_text())
    data, expected = (load_dataset(tmp_path / file, label="kind") for file in (name, "reference.csv"))
    assert data.name == "own"
    assert data.feature_names == ("age", "sort=x", "sort=y", "sort=z")
    assert data.schema == expected.schema
    for field in ("x_train", "y_train", "x_test", "y_test"):
        assert np.array_equal(getattr(data, field), getattr(expected, field))


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_row_may_be_longer_than_a_block_of_the_parser(tmp_path: Path, suffix: str) -> None:
    path, note = tmp_path / f"own.{suffix}", "n" * 3_000_000
    if suffix == "csv":
        path.write_text("\n".join(["x,note,y", *(f"{i},{note},{i % 2}" for i in range(6))]))
    else:
        path.write_text("\n".join(json.dumps({"x": i, "note": note, "y": i % 2}) for i in range(6)))
    data = load_dataset(path, label="y", drop=["note"], test_fraction=0.4)
    assert sorted(np.concatenate([data.x_train, data.x_test])[:, 0]) == list(range(6))


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_other_encodings_are_read_by_name_and_suggested(tmp_path: Path, suffix: str) -> None:
    text = csv_text() if suffix == "csv" else json_lines()
    path = tmp_path / f"own.{suffix}"
    path.write_bytes(text.replace("cat", "Käse").encode("latin-1"))
    with pytest.raises(ValueError, match=r"own\.\w+, line \d+ is not utf-8 text: pass --encoding"):
        load_dataset(path, label="kind")
    assert load_dataset(path, label="kind", encoding="latin-1").classes == ("Käse", "dog")


@pytest.mark.parametrize(("delimiter", "suffix"), [(";", "csv"), ("\t", "csv"), (",", "tsv"), (";", "csv.gz")])
def test_another_separator_is_recognised_and_a_decimal_comma_with_it(
    tmp_path: Path, delimiter: str, suffix: str
) -> None:
    (tmp_path / "usual.csv").write_text(csv_text(",").replace("10", "1.5"))
    text = csv_text(delimiter).replace("10", "1,5" if delimiter == ";" else "1.5")
    path = tmp_path / f"own.{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    usual = load_dataset(tmp_path / "usual.csv", label="kind")
    for option in (None, "tab" if delimiter == "\t" else delimiter):
        data = load_dataset(path, label="kind", delimiter=option)
        assert data.feature_names == usual.feature_names
        np.testing.assert_array_equal(data.x_train, usual.x_train)


def test_a_delimiter_of_one_s_own_and_one_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(csv_text("^"))
    assert load_dataset(path, label="kind", delimiter="^").classes == ("cat", "dog")
    with pytest.raises(
        ValueError, match="delimiter = ';;' is not allowed: it must be one character, tab, or none"
    ):
        load_dataset(path, label="kind", delimiter=";;")


@pytest.mark.parametrize("name", ["klingon", "zlib", "base64"])
def test_an_encoding_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"encoding = '{name}' is not allowed: .* latin-1"):
        load_dataset("digits", encoding=name)


def test_an_encoding_is_not_for_parquet(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [1, 2], "y": [0, 1]}), tmp_path / "own.parquet")
    with pytest.raises(ValueError, match="--encoding latin-1 is for text files"):
        load_dataset(tmp_path / "own.parquet", label="y", encoding="latin-1")


# Categories ---------------------------------------------------------------------------------------


def write(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.parquet"


PART = ["train"] * 8 + ["test"] * 4
Y = [0, 1] * 6


def test_text_becomes_one_input_per_category_of_the_training_rows(path: Path) -> None:
    colours = ["red", "blue"] * 4 + ["red", "green", "blue", "blue"]
    write(path, colour=colours, size=np.arange(12.0), y=Y, part=PART)
    with pytest.warns(UserWarning, match=r"'colour': 1 rows hold a category .* the first 'green' in row 10"):
        data = load_dataset(path, label="y", split="part")
    assert data.feature_names == ("colour=blue", "colour=red", "size")
    assert data.x_train[:2].tolist() == [[0, 1, 0], [1, 0, 1]]
    assert data.x_test.tolist() == [[0, 1, 8], [0, 0, 9], [1, 0, 10], [1, 0, 11]]
    assert data.encoding.columns[0] == Column("colour", "category", ("blue", "red"))


def test_dictionary_columns_of_numbers_and_truth_values_are_categories(path: Path) -> None:
    grade, known = [2, 10] * 6, [True, True, False] * 4
    frame = pd.DataFrame({"grade": pd.Categorical(grade), "known": pd.Categorical(known), "y": Y})
    data = load_dataset(frame, label="y")
    assert data.feature_names == ("grade=10", "grade=2", "known=False", "known=True")
    frame["day"] = pd.Categorical(pd.to_datetime(["2026-01-01", "2026-01-02"] * 6))
    assert load_dataset(frame, label="y", features=["day"]).x_train.shape[1] == 2
    write(path, grade=grade, known=known)
    rows = load_rows(path, data.schema, labelled=False)
    assert rows.x[:2].tolist() == [[0, 1, 0, 1], [1, 0, 0, 1]]


def test_an_id_column_of_text_is_refused_with_advice_and_can_be_dropped(path: Path) -> None:
    write(path, id=[f"row {i}" for i in range(40)], x=np.arange(40.0), y=[0, 1] * 20)
    with pytest.raises(ValueError, match=r"'id' holds 32 different texts in 32 training rows .* --drop id"):
        load_dataset(path, label="y")
    assert load_dataset(path, label="y", drop=["id"]).feature_names == ("x",)


def test_too_many_categories_are_refused(path: Path) -> None:
    write(path, word=[f"w{i % 300}" for i in range(3000)], y=[0, 1] * 1500)
    with pytest.raises(ValueError, match=r"'word' holds 300 different texts .*at most 256"):
        load_dataset(path, label="y")


def test_numbers_among_text_are_a_slip_and_not_categories(path: Path) -> None:
    write(path, x=["1", "2.5", "three"] * 4, y=Y)
    with pytest.raises(ValueError, match=r"'x' is of type string .*'three'.* holds numbers as well"):
        load_dataset(path, label="y")


# Gaps ---------------------------------------------------------------------------------------------


def test_missing_values_are_refused_with_column_row_count_and_advice(path: Path) -> None:
    write(path, a=[1.0, None, 3.0, float("nan"), *range(8)], y=Y)
    with pytest.raises(
        ValueError, match=r"'a', row 2: the value is missing \(2 are in this column\); pass --impute median"
    ):
        load_dataset(path, label="y")
    write(path, a=["u", "", None, *["v"] * 9], y=Y)
    with pytest.raises(ValueError, match=r"'a', row 2: the value is missing \(2 are in this column\).*--drop a"):
        load_dataset(path, label="y")


def test_missing_values_are_filled_in_from_the_training_rows_alone(path: Path) -> None:
    numbers = [1.0, None, 3.0, 100.0, 2.0, 2.0, 3.0, 1.0, None, 900.0, 900.0, 900.0]
    letters = ["a", "b", None, "b", "b", "a", "b", "b", "", "a", "a", "a"]
    write(path, number=numbers, letter=letters, y=Y, part=PART)
    data = load_dataset(path, label="y", split="part", impute="median")
    assert data.encoding.columns == (
        Column("number", fill=2.0),
        Column("letter", "category", ("a", "b"), fill="b"),
    )
    assert data.x_train[1].tolist() == [2, 0, 1]
    assert data.x_train[2].tolist() == [3, 0, 1]
    assert data.x_test[0].tolist() == [2, 0, 1]


def test_truth_values_are_filled_in_by_the_more_frequent_one(path: Path) -> None:
    write(path, even=[None, True, False] * 4, often=[None, True, True, False] * 3, y=Y)
    columns = load_dataset(path, label="y", impute="median").encoding.columns
    assert columns == (Column("even", fill=0.0), Column("often", fill=1.0))


def test_a_label_is_never_filled_in(path: Path) -> None:
    write(path, x=np.arange(12.0), y=["a", None, *["b"] * 10])
    with pytest.raises(ValueError, match="column 'y', row 2: the value is missing"):
        load_dataset(path, label="y", impute="median")


@pytest.mark.parametrize(
    ("value", "fault"), [(float("-inf"), "not finite"), (-3.77e38, r"beyond ±3\.4e38, the range of float32")]
)
def test_a_value_that_no_float32_holds_is_refused_for_what_it_is(path: Path, value: float, fault: str) -> None:
    write(path, a=[1.0] * 11 + [value], y=Y)
    with pytest.raises(ValueError, match=rf"'a', row 12: the value is -.*, which is {fault}"):
        load_dataset(path, label="y")


def test_a_column_without_any_value_is_refused_by_name(path: Path) -> None:
    write(path, x=pa.nulls(12), z=np.arange(12.0), y=Y)
    with pytest.raises(ValueError, match="'x' is empty in every row: leave it out with --drop x"):
        load_dataset(path, label="y")
    write(path, x=pa.array([None] * 8 + [1.0] * 4), y=Y, part=PART)
    with pytest.raises(ValueError, match="'x' has no value in the training rows to impute from"):
        load_dataset(path, label="y", split="part", impute="median")


# Chosen columns -----------------------------------------------------------------------------------


def test_columns_are_chosen_and_dropped_by_name_and_pattern(path: Path) -> None:
    write(path, p_1=np.arange(12.0), p_2=np.arange(12.0), q=np.arange(12.0), note=["n"] * 12, y=Y)
    assert load_dataset(path, label="y", drop=["note", "p_*"]).feature_names == ("q",)
    assert load_dataset(path, label="y", features=["q", "p_?"]).feature_names == ("p_1", "p_2", "q")
    chosen = load_dataset(path, label="y", features=["p_*"], drop=["p_1"])
    assert chosen.feature_names == ("p_2",)
    assert chosen.encoding.ignored == ("p_1", "q", "note")


def test_a_column_without_a_name_is_refused_and_can_be_dropped(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(",x,y\n" + "".join(f"{i},{i / 2},{i % 2}\n" for i in range(12)))
    with pytest.raises(ValueError, match=r"a column has no name, .*: leave it out with --drop '' \(drop=\[''\]; "):
        load_dataset(path, label="y")
    assert load_dataset(path, label="y", drop=[""]).feature_names == ("x",)
    assert config_from(drop="").data.drop == ("",)
    assert config_from(drop=",x").data.drop == ("", "x")
    assert column_names("a, b") == ["a", "b"]
    assert column_names(None) == []


@pytest.mark.parametrize("first", [0, 1])
def test_row_numbers_among_the_features_are_warned_of(
    path: Path, recwarn: pytest.WarningsRecorder, first: int
) -> None:
    numbers, y = np.arange(40)[::-1] + first, [0, 1] * 20
    write(path, number=numbers, x=np.arange(40.0), y=y)
    with pytest.warns(UserWarning, match=r"'number' holds each number from .* once, .* --drop number"):
        load_dataset(path, label="y")
    recwarn.clear()
    load_dataset(path, label="y", drop=["number"])
    write(path, number=numbers + 2, counts=numbers % 20, y=y)
    load_dataset(path, label="y")
    assert not recwarn.list


# Integers, vectors and images -----------------------------------------------------------------------


def test_whole_numbers_stay_whole_numbers_unless_something_else_is_beside_them(path: Path) -> None:
    write(path, a=np.arange(12), b=np.arange(12) % 3, y=Y)
    data = load_dataset(path, label="y")
    assert data.is_integer
    assert data.x_train.dtype == np.int32
    write(path, a=np.arange(12) + 2**40, y=Y)
    assert load_dataset(path, label="y").x_train.dtype == np.int64
    write(path, a=np.arange(12), b=np.arange(12) / 2, y=Y)
    assert load_dataset(path, label="y").x_train.dtype == np.float32


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.int64(), 3), pa.large_list(pa.float64())])
def test_a_column_of_vectors_gives_an_input_for_each_number(path: Path, kind: Any) -> None:
    vectors = [[i, i + 1, i + 2] for i in range(12)]
    write(path, v=pa.array(vectors, kind), a=np.arange(12.0), y=Y, part=PART)
    data = load_dataset(path, label="y", split="part")
    assert data.feature_names == ("v[0]", "v[1]", "v[2]", "a")
    assert data.x_train[5].tolist() == [5, 6, 7, 5]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0]] * 4 + [[1.0]] + [[1.0, 2.0]] * 7, "'v', row 5 holds 1 numbers, row 1 2"),
        ([[1.0, 2.0]] * 4 + [[None, 1.0]] + [[1.0, 2.0]] * 7, "'v', row 5: a value is missing or not finite"),
        ([[1.0, 2.0]] * 4 + [None] + [[1.0, 2.0]] * 7, "'v', row 5: the value is missing"),
        ([[1.0, float("inf")]] * 12, "'v', row 1: a value is missing or not finite"),
        ([[]] * 12, "vectors of 0 numbers"),
    ],
)
def test_wrong_vectors_are_refused_by_row(path: Path, vectors: Any, message: str) -> None:
    write(path, v=pa.array(vectors, pa.list_(pa.float64())), y=Y)
    with pytest.raises(ValueError, match=message):
        load_dataset(path, label="y")


def png(shade: int, side: int = 4) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (side, side), shade).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("nested", [True, False])
def test_a_column_of_image_bytes_is_read_as_images(path: Path, nested: bool) -> None:
    content = [png(i) for i in range(12)]
    column = [{"bytes": image, "path": None} for image in content] if nested else content
    write(path, picture=column, note=["n"] * 12, y=Y, part=PART)
    with pytest.warns(UserWarning, match="'picture' holds images, so 'note' are ignored"):
        data = load_dataset(path, label="y", split="part")
    assert data.input_shape == (1, 4, 4)
    assert data.x_train[:, 0, 0, 0].tolist() == list(range(8))


def test_wrong_image_bytes_are_refused_by_row(path: Path) -> None:
    write(path, picture=[*[png(i) for i in range(11)], b"text"], y=Y)
    with pytest.raises(ValueError, match="'picture', row 12 is not an image"):
        load_dataset(path, label="y")
    write(path, picture=[None, *[png(i) for i in range(11)]], y=Y)
    with pytest.raises(ValueError, match="'picture', row 1: the image is missing"):
        load_dataset(path, label="y")
    write(path, one=[png(0)] * 12, two=[png(0)] * 12, y=Y)
    with pytest.raises(ValueError, match="several columns of images, 'one', 'two'"):
        load_dataset(path, label="y")


def test_a_date_is_refused_with_what_a_feature_may_be(path: Path) -> None:
    write(path, day=pa.array([0] * 12, pa.date32()), y=Y)
    with pytest.raises(ValueError, match=r"'day' is of type date32.* must be a number, a category .* --drop day"):
        load_dataset(path, label="y")


# Labels -------------------------------------------------------------------------------------------


def test_labels_that_look_like_lists_and_a_single_class_are_pointed_out(path: Path) -> None:
    write(path, x=np.arange(12.0), y=["a", "a|b", "b"] * 4)
    with pytest.warns(UserWarning, match=r"'a\|b' may be several labels in one"):
        load_dataset(path, label="y")
    write(path, x=np.arange(12.0), y=["a", "a,b", "b"] * 4)
    with pytest.warns(UserWarning, match="'a,b' may be several labels in one"):
        load_dataset(path, label="y")
    write(path, x=np.arange(12.0), y=["a"] * 12)
    with pytest.warns(UserWarning, match="has one class only, 'a'"):
        load_dataset(path, label="y")


def test_ordinary_names_with_a_comma_are_not_pointed_out(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    write(path, x=np.arange(12.0), y=["Washington, D.C.", "New York"] * 6)
    load_dataset(path, label="y")
    assert not recwarn.list


def test_labels_and_clients_that_are_whole_numbers_may_be_floats(path: Path) -> None:
    write(path, x=np.arange(12.0), y=np.array(Y, float), who=np.array(Y, float) + 5)
    data = load_dataset(path, label="y", client="who")
    assert data.classes == ("0", "1")
    assert data.client_names == ("5", "6")
    write(path, x=np.arange(12.0), y=np.array(Y) / 2)
    with pytest.raises(ValueError, match=r"'y' is of type double: it must hold integers, floats that are whole"):
        load_dataset(path, label="y")


def test_a_client_may_be_a_date(path: Path) -> None:
    write(path, x=np.arange(12.0), y=Y, day=pa.array([19000, 19000, 19001, 19001] * 3, pa.date32()))
    assert load_dataset(path, label="y", client="day").client_names == ("2022-01-08", "2022-01-09")
    with pytest.raises(ValueError, match=r"'day' is of type date32.*: it must hold integers"):
        load_dataset(path, label="day")


# A long text ---------------------------------------------------------------------------------------


def test_one_long_text_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedwcm.data.formats import safety

    monkeypatch.setattr(safety, "FLOOR", 2**20)
    lines = [f"{i},{'a' * 20_000 if i == 0 else 'b'}" for i in range(5000)]
    (tmp_path / "own.csv").write_text("\n".join(["x,y", *lines]))
    with pytest.raises(ValueError, match=r"column 'y' holds .* decompression bomb"):
        load_dataset(tmp_path / "own.csv", label="y")
