"""One's own data: NumPy files, tables and folders of images."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, parquet

from fedwcm.data import load_dataset

# Tables -------------------------------------------------------------------------------------------

HEIGHTS = [float(i) for i in range(20)]
ROLES = {"label": "kind", "client": "site", "split": "part"}


def rows(**changes: Any) -> dict[str, Any]:
    """Make 20 rows: two numbers, a flag, two classes, three sites, the last 6 rows for test."""
    columns = {
        "height": HEIGHTS,
        "count": list(range(20)),
        "flag": [i % 3 == 0 for i in range(20)],
        "kind": ["dog" if i % 2 else "cat" for i in range(20)],
        "site": [("oslo", "rome", "bern")[i % 3] for i in range(20)],
        "part": ["train"] * 14 + ["test"] * 6,
    }
    return columns | changes


def write(path: Path, columns: dict[str, Any]) -> Path:
    table = pa.table(columns)
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)
    return path


@pytest.fixture(params=["data.csv", "data.parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def test_a_table_is_read_with_its_label_client_and_split_columns(path: Path) -> None:
    data = load_dataset(write(path, rows()), label="kind", client="site", split="part")
    assert data.name == "data"
    assert data.classes == ("cat", "dog")
    assert data.client_names == ("bern", "oslo", "rome")
    expected = np.array([HEIGHTS, range(20), [i % 3 == 0 for i in range(20)]], dtype=np.float32).T
    assert np.array_equal(data.x_train, expected[:14])
    assert np.array_equal(data.x_test, expected[14:])
    assert np.array_equal(data.y_train, np.arange(14) % 2)
    assert data.client_ids is not None
    assert [data.client_names[i] for i in data.client_ids[:4]] == ["oslo", "rome", "bern", "oslo"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "kinds"}, r"no column 'kinds' \(did you mean 'kind'\?\); its columns are height, count"),
        ({"label": "kind", "client": "sit"}, r"no column 'sit' \(did you mean 'site'\?\)"),
        ({"label": "kind", "split": "zzz"}, "no column 'zzz'; its columns"),
        ({"label": "kind", "client": "kind"}, "column 'kind' has two roles, label and client"),
        ({"label": "kind", "client": "site", "split": "height"}, "'height'(, row 1 is '0'| is of type double)"),
        (ROLES | {"drop": ["hight"]}, r"drop hight .*did you mean 'height'"),
        (ROLES | {"features": ["z*"]}, r"features z\* .* no feature column"),
        (ROLES | {"drop": ["*"]}, "no feature column: nothing is left"),
        (ROLES | {"image_size": 8}, "no column holds images"),
    ],
)
def test_wrong_columns_are_named(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset(write(path, rows()), **options)


def test_a_label_must_be_given_and_a_usual_name_is_suggested(path: Path) -> None:
    with pytest.raises(ValueError, match=r"--label NAME .*; its columns are height"):
        load_dataset(write(path, rows()))
    for name in ("label", "Target", "y", "class"):
        with pytest.raises(ValueError, match=f"perhaps --label {name}"):
            load_dataset(write(path, {"x": [1, 2], name: [0, 1]}))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("height", [*HEIGHTS[:4], None, *HEIGHTS[5:]]),
        ("count", [0, 1, 2, 3, None, *range(5, 20)]),
        ("kind", [*["cat", "dog"] * 2, None, *["dog"] * 15]),
        ("site", [*["oslo"] * 4, None, *["oslo"] * 15]),
        ("part", [*["train"] * 4, None, *["test"] * 15]),
    ],
)
def test_a_missing_value_is_named_by_column_and_row(path: Path, name: str, values: list[Any]) -> None:
    write(path, rows(**{name: values}))
    with pytest.raises(ValueError, match=f"column '{name}', row 5: the value is missing"):
        load_dataset(path, label="kind", client="site", split="part")


def test_a_split_value_that_names_no_part_is_refused(path: Path) -> None:
    write(path, rows(part=["train"] * 14 + ["later"] * 6))
    with pytest.raises(ValueError, match="column 'part', row 15 is 'later': it must be 'train', 'val' or 'test'"):
        load_dataset(path, label="kind", client="site", split="part")


def test_a_client_with_test_rows_only_is_dropped_with_a_warning(path: Path) -> None:
    write(path, rows(site=["oslo", "rome"] * 7 + ["bern"] * 6))
    with pytest.warns(UserWarning, match="of client 'bern'; dropped as client"):
        data = load_dataset(path, label="kind", client="site", split="part")
    assert data.client_names == ("oslo", "rome")
    assert len(data.y_test) == 6


def test_an_empty_test_part_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="test part is empty"):
        load_dataset(write(path, {"x": [1, 2], "y": [0, 1]}), label="y")


def test_a_column_called_client_that_is_read_as_a_feature_is_pointed_out(path: Path) -> None:
    write(path, {"x": list(range(10)), "client": [0, 1] * 5, "y": [0, 1] * 5})
    with pytest.warns(UserWarning, match="'client' is read as a feature; .* --client client"):
        data = load_dataset(path, label="y")
    assert data.input_shape == (2,)
    assert data.client_ids is None


def test_categories_of_a_parquet_file_are_taken_by_their_values(tmp_path: Path) -> None:
    labels = pa.array(["b", "a"] * 5).dictionary_encode()
    data = load_dataset(write(tmp_path / "d.parquet", {"x": list(range(10)), "y": labels}), label="y")
    assert data.classes == ("a", "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("x,y\n", "no rows"),
        ("x,y\n1\n", "cannot be read"),
        ("x,x,y\n1,2,0\n", "more than one"),
    ],
)
def test_a_malformed_csv_is_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"odd\.csv.* {message}"):
        load_dataset(path, label="y")


# NumPy files --------------------------------------------------------------------------------------


def test_npz_with_parts_is_taken_as_it_is(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
    y = np.array(["b", "a", "b", "a", "b", "a"])
    clients = np.array([7, 7, 3, 3, 7, 3])
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_train=clients)
    data = load_dataset(tmp_path / "own.npz")
    assert np.array_equal(data.x_train, x[..., np.newaxis])
    assert data.input_shape == (1, 5, 4)
    assert data.y_train.tolist() == [1, 0] * 3
    assert data.client_names == ("3", "7")
    assert data.client_ids is not None
    assert data.client_ids.tolist() == [1, 1, 0, 0, 1, 0]


def test_npz_without_parts_is_split_together_with_its_clients(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float64).reshape(20, 2)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) % 2, client=np.arange(20) % 4)
    data = load_dataset(str(tmp_path / "own.npz"), test_fraction=0.3)
    rows = (data.x_train[:, 0] // 2).astype(int)
    assert len(data.y_test) == 6
    assert np.array_equal(data.y_train, rows % 2)
    assert data.client_ids is not None
    assert np.array_equal(data.client_ids, rows % 4)


def test_npz_class_names_keep_their_order(tmp_path: Path) -> None:
    x = np.zeros((4, 2), np.float32)
    for y in (np.array([0, 1, 0, 1]), np.array(["small", "large", "small", "large"])):
        np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=["small", "large"])
        data = load_dataset(tmp_path / "own.npz")
        assert data.classes == ("small", "large")
        assert data.y_train.tolist() == [0, 1, 0, 1]


GOOD: dict[str, Any] = {"x": np.zeros((10, 2)), "y": np.arange(10) % 2}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": GOOD["x"]}, "lacks y"),
        ({"x_train": GOOD["x"], "y_train": GOOD["y"], "x_test": GOOD["x"]}, "lacks y_test"),
        (GOOD | {"clients": GOOD["y"]}, r"unknown array 'clients' \(did you mean 'client'\?\)"),
        (GOOD | {"y": np.zeros((10, 1), int)}, r"labels are int64 of shape \(10, 1\)"),
        (GOOD | {"y": np.zeros(9, int)}, "10 samples but 9 labels"),
        (GOOD | {"client": np.zeros(4, int)}, "10 samples but 4 clients"),
        (GOOD | {"x": np.zeros((10, 3, 8, 8), np.uint8)}, "at most 4 channels"),
        (GOOD | {"x": np.zeros(10)}, "images must be numbers of shape"),
        (GOOD | {"x": np.zeros((10, 2, 2, 2, 2))}, "images must be numbers of shape"),
        (GOOD | {"x": np.array([["a"]] * 10)}, "images must be numbers of shape"),
        (GOOD | {"classes": ["a"]}, "it must be from 0 to 0"),
        (GOOD | {"y": np.array(["a", "c"] * 5), "classes": ["a", "b"]}, "label 'c' is not among the classes"),
        (
            {"x_train": GOOD["x"], "y_train": GOOD["y"], "x_test": GOOD["x"], "y_test": np.array(["0"] * 10)},
            "train labels are int64, test labels are <U1",
        ),
        (GOOD | {"y": np.array([None, 1] * 5)}, "Python objects are not read"),
    ],
)
def test_a_wrong_npz_is_refused_with_its_reason(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path / "own.npz")


def test_a_pickle_called_npz_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(ValueError, match=r"is not an \.npz file"):
        load_dataset(tmp_path / "own.npz")


# Folders of images --------------------------------------------------------------------------------


def save_image(path: Path, mode: str, shade: int, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode in ("L", "I;16") else (shade, 0, 0)).save(path)


def test_a_folder_with_parts_is_read_and_numbered_classes_are_in_numeric_order(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for shade, name in enumerate(("0", "2", "10")):
            save_image(tmp_path / part / name / "one.png", "L", shade)
    (tmp_path / "train" / "0" / "notes.txt").write_text("not an image")
    data = load_dataset(tmp_path)
    assert data.name == tmp_path.name
    assert data.classes == ("0", "2", "10")
    assert data.input_shape == (1, 4, 6)
    assert np.array_equal(data.x_train[:, 0, 0, 0], data.y_train)


def test_a_folder_without_parts_is_split(tmp_path: Path) -> None:
    for shade in range(10):
        for name in ("cat", "dog"):
            save_image(tmp_path / name / f"{shade}.png", "RGB", shade)
    data = load_dataset(tmp_path, test_fraction=0.3)
    assert data.input_shape == (3, 4, 6)
    assert np.bincount(data.y_test).tolist() == [3, 3]
    shades = np.concatenate([data.x_train, data.x_test])[:, 0, 0, 0]
    assert sorted(shades) == sorted([*range(10)] * 2)


def test_one_coloured_image_makes_all_of_them_coloured(tmp_path: Path) -> None:
    save_image(tmp_path / "train/a/0.png", "L", 50)
    save_image(tmp_path / "test/a/0.png", "RGB", 70)
    data = load_dataset(tmp_path)
    assert (data.x_train == 50).all()
    assert data.x_train.shape == (1, 4, 6, 3)
    assert data.x_test[0, 0, 0].tolist() == [70, 0, 0]


def test_what_is_no_folder_of_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no folders of images"):
        load_dataset(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="holds no image"):
        load_dataset(tmp_path)
    (tmp_path / "a/0.png").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"0\.png is not an image"):
        load_dataset(tmp_path)
    save_image(tmp_path / "a/0.png", "I;16", 0)
    with pytest.raises(ValueError, match=r"0\.png has mode I;16"):
        load_dataset(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train").rename(tmp_path / "test")
    with pytest.raises(ValueError, match="'test' but none called 'train', beside 'a'"):
        load_dataset(tmp_path)


def test_an_image_that_is_cut_off_is_named(tmp_path: Path) -> None:
    save_image(tmp_path / "a/0.bmp", "RGB", 9, (60, 60))
    whole = (tmp_path / "a/0.bmp").read_bytes()
    (tmp_path / "a/0.bmp").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"0\.bmp cannot be decoded"):
        load_dataset(tmp_path)


# The source itself --------------------------------------------------------------------------------


def test_an_unknown_extension_is_refused_with_what_is_supported(tmp_path: Path) -> None:
    (tmp_path / "data.xlsx").write_text("")
    with pytest.raises(
        ValueError, match=r"unknown extension '\.xlsx'; supported are \.npz, \.csv, \.tsv, .*\.parquet"
    ):
        load_dataset(tmp_path / "data.xlsx")


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.csv is neither a file or folder nor a known dataset"):
        load_dataset(tmp_path / "gone.csv", label="y")


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_a_test_fraction_outside_the_unit_interval_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=f"test_fraction = {fraction} is not allowed"):
        load_dataset("digits", test_fraction=fraction)


def test_columns_are_refused_where_there_are_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **GOOD)
    with pytest.raises(ValueError, match=r"--client who .* is not for a \.npz file"):
        load_dataset(tmp_path / "own.npz", client="who")
