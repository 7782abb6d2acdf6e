"""Laws of the Dataset type, of the stratified split and of the numbering of labels."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from torch.utils.data import Dataset as TorchDataset

from fedwcm.data import Dataset, load_dataset, load_rows, stratified_split
from fedwcm.data.build import encode
from fedwcm.data.inputs import Normalizer

RNG = np.random.default_rng(0)


def table(**changes: Any) -> Dataset:
    """Make a valid table of 3 classes and 2 clients, with some fields changed."""
    fields: dict[str, Any] = {
        "name": "toy",
        "x_train": RNG.normal(size=(6, 4)).astype(np.float32),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": RNG.normal(size=(3, 4)).astype(np.float32),
        "y_test": np.array([0, 1, 2]),
        "classes": ("a", "b", "c"),
        "client_ids": np.array([0, 0, 0, 1, 1, 1]),
        "client_names": ("north", "south"),
    }
    return Dataset(**(fields | changes))


def test_shape_of_images_has_the_channels_first() -> None:
    data = table(x_train=np.zeros((6, 5, 7, 3), np.uint8), x_test=np.zeros((3, 5, 7, 3), np.uint8))
    assert (data.input_shape, data.is_image) == ((3, 5, 7), True)
    assert (table().input_shape, table().num_classes, table().is_image) == ((4,), 3, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.array([0, 1, 2])}, "y_train has 3 entries but x_train has 6"),
        ({"y_test": np.array([0, 1, 3])}, r"y_test\[2\] is 3: it must be from 0 to 2"),
        ({"y_train": np.array([0, 1, 2, -1, 1, 2])}, r"y_train\[3\] is -1"),
        ({"y_test": np.array([0.0, 1.0, 2.0])}, "y_test is float64"),
        ({"x_test": np.zeros((3, 5), np.float32)}, r"\(4,\), those of x_test \(5,\)"),
        ({"x_test": np.zeros((3, 4))}, "x_test is float64 of shape"),
        ({"x_test": np.zeros((3, 0), np.float32)}, "no values"),
        (
            {"x_train": np.zeros((6, 5, 5, 1), np.uint8), "x_test": np.zeros((3, 5, 5, 1), np.float32)},
            "x_train are images of uint8, x_test of float32",
        ),
        ({"x_train": np.full((6, 4), np.nan, np.float32)}, r"x_train\[0, 0\] is nan"),
        ({"x_train": np.zeros((0, 4), np.float32), "y_train": np.zeros(0, np.int64)}, "nothing to train on"),
        ({"classes": ("a", "b", "b")}, "twice"),
        ({"client_ids": np.array([0, 0, 0, 1, 1, 2])}, r"client_ids\[5\] is 2: it must be from 0 to 1"),
        ({"client_ids": np.array([0, 1])}, "client_ids has 2 entries"),
        ({"client_ids": None}, "client_names is given without client_ids"),
        ({"y_train": np.array([0, 1, 0, 0, 1, 1])}, "no training sample, only test samples, of class 'c'"),
    ],
)
def test_a_broken_promise_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table(**changes)


def test_a_class_without_test_samples_is_allowed_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="no test sample of class 'b'"):
        data = table(y_test=np.array([0, 2, 2]))
    assert data.num_classes == 3


@given(
    labels=st.lists(st.integers(0, 5), max_size=60),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 1000),
)
def test_split_is_a_partition_with_the_documented_count_per_class(
    labels: list[int], fraction: float, seed: int
) -> None:
    y = np.array(labels, dtype=np.int64)
    keep, held_out = stratified_split(y, fraction, np.random.default_rng(seed))
    assert sorted([*keep, *held_out]) == list(range(len(y)))
    assert (np.diff(keep) > 0).all()
    assert (np.diff(held_out) > 0).all()
    for label in set(labels):
        n = labels.count(label)
        assert np.sum(y[held_out] == label) == min(np.floor(n * fraction + 0.5), n - 1)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5])
def test_a_fraction_outside_the_unit_interval_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=f"fraction is {fraction}"):
        stratified_split(np.zeros(3, np.int64), fraction, np.random.default_rng(0))


@given(st.lists(st.integers(-50, 50), min_size=1))
def test_integers_are_numbered_in_numeric_order_whether_as_numbers_or_as_text(values: list[int]) -> None:
    expected = sorted(set(values))
    for array in (np.array(values), np.array([str(v) for v in values])):
        names, codes = encode(array)
        assert [int(name) for name in names] == expected
        assert [expected[code] for code in codes] == values


@given(st.lists(st.text("abZ09", min_size=1), min_size=1))
def test_numbering_text_can_be_undone(values: list[str]) -> None:
    names, codes = encode(np.array([f"t{value}" for value in values]))
    assert [names[code] for code in codes] == [f"t{value}" for value in values]
    assert list(names) == sorted(set(names))


@pytest.mark.parametrize("options", [{"label": "y"}, {"features": ["a"]}, {"image_size": 8}])
def test_a_data_set_that_is_made_already_is_not_read_again(options: dict[str, Any]) -> None:
    x, y = np.zeros((4, 2), dtype=np.float32), np.array([0, 1, 0, 1])
    made = Dataset("made", x, y, x, y, ("a", "b"))
    (option,) = options
    with pytest.raises(ValueError, match=rf"{option}=.* is not for a fedwcm\.Dataset, as made is"):
        load_dataset(made, **options)


def test_a_value_that_is_not_finite_is_found_where_the_source_has_it() -> None:
    x, y = RNG.normal(size=(40, 2)), np.arange(40) % 2
    schema = load_dataset((x, y)).schema
    for wrong in (np.nan, 3.77e38):
        x[3, 1] = wrong
        with pytest.raises(ValueError, match=r"arrays: x\[3, 1\] is .*: every feature must be a finite number"):
            load_dataset((x, y))
        with pytest.raises(ValueError, match=r"arrays: x\[3, 1\] is"):
            load_rows((x, y), schema)
    with pytest.raises(ValueError, match=r"arrays: x have the shape \(3,\), those of the model \(2,\)"):
        load_rows((np.zeros((4, 3)), y[:4]), schema)


@pytest.mark.parametrize("values", [[1, "a"] * 6, [1j] * 12], ids=["mixed", "complex"])
def test_a_column_of_a_frame_that_cannot_be_read_is_named(values: list[object]) -> None:
    frame = pd.DataFrame({"x": np.arange(12.0), "odd": values, "y": [0, 1] * 6})
    with pytest.raises(ValueError, match=r"DataFrame: .* column odd .*: a column must hold numbers, or text"):
        load_dataset(frame, label="y")


def test_tensors_of_bfloat16_are_read() -> None:
    x = torch.arange(24.0).view(12, 2)
    data, same = (load_dataset((inputs, np.arange(12) % 2)) for inputs in (x.bfloat16(), x))
    assert np.array_equal(data.x_train, same.x_train)


class Rows(TorchDataset[Any]):
    """Twelve samples, each made when it is read."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        return self.make(i)


def test_random_transforms_of_a_data_set_of_torch_are_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    load_dataset(Rows(lambda i: (torch.full((2,), float(i)), i % 2)))
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"a Rows whose sample \d+ is another one each time: it is read once"):
        load_dataset(Rows(lambda i: (i + torch.rand(2), i % 2)))


def test_labels_and_clients_of_arrays_may_be_floats_that_are_whole_numbers() -> None:
    x, y = RNG.normal(size=(40, 2)), np.arange(40) % 2
    data = load_dataset((x, y.astype(float)), client_ids=y + 3.0)
    assert data.classes == ("0", "1")
    assert data.client_names == ("3", "4")
    assert len(load_rows((x, y.astype(float)), data.schema).x) == 40
    for wrong in (y / 2, np.where(y, np.nan, 0.0)):
        with pytest.raises(ValueError, match=r"labels must be whole numbers or text, but that of row \d+ is"):
            load_dataset((x, wrong))


def test_columns_that_float32_cannot_tell_apart_are_warned_of() -> None:
    near, far = np.arange(320.0), 1.7e9 + np.arange(320.0)
    with pytest.warns(UserWarning, match=r"column 1 .* mean 1\.7e\+09 .* multiples of 128 apart"):
        Normalizer.fit(np.stack([near, far], axis=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Normalizer.fit(np.stack([near, far - 1.7e9, np.full(320, 1.7e9)], axis=1))


@pytest.mark.parametrize("spread", [60, 2000])
@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_numbers_of_a_table_that_become_equal_in_float32_are_warned_of_by_name(
    tmp_path: Path, spread: int, kind: type
) -> None:
    times = (1_700_000_000 + np.linspace(0, spread, 40)).astype(kind)  # type: ignore[var-annotated]
    table = pa.table({"size": np.arange(40) / 7, "time": times, "y": [0, 1] * 20})
    parquet.write_table(table, tmp_path / "own.parquet")
    with pytest.warns(
        UserWarning, match=r"column 'time' runs from 17000.* multiples of 128 apart there: subtract"
    ):
        load_dataset(tmp_path / "own.parquet", label="y")


def test_columns_of_an_array_that_become_equal_in_float32_are_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    near = RNG.normal(size=(40, 2))
    load_dataset((near, np.arange(40) % 2))
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"arrays: train features: column 1 \(the first is 0\) runs from"):
        load_dataset((1e6 * np.array([0, 1]) + 1e-3 * near, np.arange(40) % 2))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"x": torch.zeros(4), "y": 1}, "of dicts: its samples must be pairs"),
        ((torch.zeros(4), torch.tensor([0, 1, 0])), r"labels of shape \(3,\): a label must be one number"),
    ],
)
def test_samples_of_torch_that_are_no_pairs_are_refused(row: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset(Rows(lambda _: row))


def test_unsigned_labels_beside_signed_ones_stay_whole_numbers() -> None:
    x, y = RNG.normal(size=(6, 4)), np.array([0, 1, 2, 0, 1, 2])
    assert load_dataset((x, y.astype(np.uint64), x, y)).classes == ("0", "1", "2")


def test_clients_with_images_of_other_units_are_refused() -> None:
    bytes_, floats = np.zeros((4, 5, 5, 1), np.uint8), np.zeros((4, 5, 5, 1), np.float32)
    with pytest.raises(ValueError, match="samples of client 'b' are float32, those of client 'a' uint8"):
        load_dataset({"a": (bytes_, np.arange(4) % 2), "b": (floats, np.arange(4) % 2)})


def test_classes_that_differ_by_capitals_or_spaces_are_pointed_out() -> None:
    with pytest.warns(UserWarning, match="the classes 'a', 'A ' differ by capitals or spaces alone"):
        table(classes=("a", "A ", "c"))
