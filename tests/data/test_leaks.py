"""What makes a result too good, or another one than was meant, is kept out or said."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix

import fedwcm
from fedwcm.data import load_dataset, load_rows, stratified_split

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
Y = np.arange(120) % 3
PATIENTS = np.repeat(np.arange(40), 3)
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "patient": PATIENTS, "kind": np.array(["x", "y", "z"])[Y]})


def messages(source: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_dataset(source, **options)
    return [str(warning.message) for warning in caught]


def patients_of(rows: np.ndarray) -> set[int]:
    return {int(PATIENTS[np.flatnonzero(np.isclose(X[:, 0], value, atol=1e-6))[0]]) for value in rows[:, 0]}


def test_a_group_stays_on_one_side_of_the_test_and_of_the_validation(tmp_path: Path) -> None:
    arrays: Any = {"x": X, "y": Y, "group": PATIENTS}
    np.savez(tmp_path / "own.npz", **arrays)
    FRAME.to_csv(tmp_path / "own.csv", index=False)
    for source, options in (
        (FRAME, {"label": "kind", "group": "patient"}),
        (tmp_path / "own.csv", {"label": "kind", "group": "patient"}),
        (arrays, {}),
        (tmp_path / "own.npz", {}),
    ):
        data = load_dataset(source, **options)  # type: ignore[arg-type]
        assert not patients_of(data.x_train) & patients_of(data.x_test)
        assert np.bincount(data.y_test).tolist() == [8, 8, 8]
    division = fedwcm.partition(dataset=FRAME, label="kind", group="patient", val_fraction=0.25, clients=3)
    trained = np.concatenate(list(division.rows))
    ids = division.dataset.group_ids
    assert ids is not None
    held_out = np.setdiff1d(np.arange(len(ids)), trained)
    assert len(held_out)
    assert not set(ids[trained]) & set(ids[held_out])


def test_groups_of_one_sample_are_split_as_samples_are() -> None:
    labels = RNG.integers(4, size=203)
    plain = stratified_split(labels, 0.3, np.random.default_rng(1))[1]
    grouped = stratified_split(labels, 0.3, np.random.default_rng(2), np.arange(203))[1]
    np.testing.assert_array_equal(np.bincount(labels[plain]), np.bincount(labels[grouped]))


def test_a_class_in_one_group_stays_for_training() -> None:
    labels, groups = np.array([0] * 20 + [1] * 4), np.array([*range(20), 20, 20, 20, 20])
    keep, held_out = stratified_split(labels, 0.5, np.random.default_rng(0), groups)
    assert set(labels[held_out]) == {0}
    assert set(labels[keep]) == {0, 1}


def test_parts_that_divide_a_group_are_refused() -> None:
    frame = FRAME.assign(part=["test" if i % 3 == 0 else "train" for i in range(120)])
    with pytest.raises(ValueError, match="have samples in test and in train: a group must be in one part"):
        load_dataset(frame, label="kind", group="patient", split="part")


def test_images_of_a_group_stay_together(tmp_path: Path) -> None:
    from PIL import Image

    lines = ["file,group"]
    for i in range(24):
        file = tmp_path / "images" / "ab"[i % 2] / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), i).save(file)
        lines.append(f"{'ab'[i % 2]}/{i:02}.png,{i // 4}")
    (tmp_path / "groups.csv").write_text("\n".join(lines))
    data = load_dataset(tmp_path / "images", group=str(tmp_path / "groups.csv"))
    held_out = {int(pixel) // 4 for pixel in data.x_test[:, 0, 0, 0]}
    assert held_out
    assert not held_out & {int(pixel) // 4 for pixel in data.x_train[:, 0, 0, 0]}


def test_rows_without_a_label_are_refused_or_skipped_with_their_number(tmp_path: Path) -> None:
    frame = FRAME.assign(kind=FRAME["kind"].where(FRAME.index % 10 != 0))
    with pytest.raises(
        ValueError, match=r"row 1: the value is missing \(12 are in this column\); pass --unlabelled"
    ):
        load_dataset(frame, label="kind")
    words = messages(frame, label="kind", unlabelled="skip")
    assert any("12 of 120 rows have no label in column 'kind' and are skipped" in text for text in words)
    with pytest.warns(UserWarning, match="12 of 120 rows"):
        data = load_dataset(frame, label="kind", unlabelled="skip")
    assert len(data.y_train) + len(data.y_test) == 108
    frame.to_csv(tmp_path / "own.csv", index=False)
    with pytest.warns(UserWarning, match="12 of 120 rows"):
        rows = load_rows(tmp_path / "own.csv", data.schema, unlabelled="skip")
    assert len(rows.x) == 108


@pytest.mark.parametrize("values", [Y, np.array([7.0, 3.0, 5.0])[Y], np.array(["u", "v", "w"])[Y]])
def test_a_column_that_is_the_label_is_named_once(values: np.ndarray) -> None:
    words = messages(FRAME.assign(copy=values), label="kind", drop=["patient"])
    assert [text for text in words if "tells the class" in text] == [
        "DataFrame: column 'copy' tells the class of every training row, one to one: if it is another form of the "
        "label, leave it out (--drop)"
    ]
    assert not messages(FRAME, label="kind", drop=["patient"])


def test_test_rows_that_are_training_rows_are_counted() -> None:
    assert any(
        "6 of 30 test rows equal a training row" in text for text in messages((X[:96], Y[:96], X[90:], Y[90:]))
    )
    assert not messages((X[:90], Y[:90], X[90:], Y[90:]))


def test_classes_that_are_one_number_are_named(tmp_path: Path) -> None:
    text = "a,kind\n" + "".join(f"{x},{('1', '1.0', '2')[i % 3]}\n" for i, x in enumerate(X[:60, 0]))
    (tmp_path / "own.csv").write_text(text)
    words = messages(tmp_path / "own.csv", label="kind")
    assert any("the classes '1', '1.0' are the same number" in text for text in words)


def test_clients_called_1_and_1_are_not_merged() -> None:
    pairs = {1: (X[:60], Y[:60]), "1": (X[60:], Y[60:])}
    with pytest.raises(ValueError, match="'1' names two clients"):
        load_dataset(pairs)
    with pytest.raises(ValueError, match="'int', 'str' together"):
        load_dataset((X, Y), client_ids=[1, "1"] * 60)
    parts = {"x_train": X, "y_train": Y, "client_train": Y, "x_test": X + 1, "y_test": Y}
    with pytest.raises(ValueError, match="train clients are int64, test clients are <U"):
        load_dataset(parts | {"client_test": Y.astype(np.str_)})


def test_clients_that_are_one_number_or_differ_by_spaces_are_named() -> None:
    clients = np.array(["1", "01", "a", "a ", "b", "B"] * 20)
    assert messages((X, Y), client_ids=clients) == [
        "arrays: the clients 'a', 'a ' differ by spaces alone: each is a client of its own",
        "arrays: the clients '01', '1' are the same number, written in several ways: each is a client of its own",
    ]


def test_images_of_truth_values_are_no_bytes() -> None:
    pixels = RNG.integers(0, 256, size=(60, 4, 4, 1), dtype=np.uint8)
    labels = np.arange(60) % 2
    with pytest.raises(ValueError, match="are images of float32, those of the model of uint8"):
        load_rows((pixels > 128, labels), load_dataset((pixels, labels)).schema)
    schema = load_dataset((pixels > 128, labels)).schema
    assert set(np.unique(load_rows((pixels > 128, labels), schema).x)) == {0.0, 1.0}


def test_masked_and_sparse_arrays_are_refused_and_float_types_may_differ() -> None:
    masked = np.ma.masked_array(X, X > 2)
    with pytest.raises(ValueError, match=rf"a masked array has {(X > 2).sum()} masked values"):
        load_dataset((masked, Y))
    assert len(load_dataset((np.ma.masked_array(X), Y)).x_train) == 96
    with pytest.raises(ValueError, match=r"a sparse csr_matrix of scipy: pass a dense one, array\.toarray\(\)"):
        load_dataset((csr_matrix(X), Y))
    with pytest.raises(ValueError, match=r"a sparse tensor: pass a dense one, tensor\.to_dense\(\)"):
        load_dataset((torch.tensor(X).to_sparse(), Y))

    class Mixed(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 120

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            return torch.tensor(X[i], dtype=(torch.float32, torch.float64)[i % 2]), int(Y[i])

    np.testing.assert_allclose(load_dataset(Mixed()).x_train, load_dataset((X, Y)).x_train, rtol=1e-6)


def test_a_split_column_without_a_test_row_says_what_is_drawn() -> None:
    words = messages(FRAME.assign(part="train"), label="kind", split="part", drop=["patient"])
    assert words == ["DataFrame has no test part: 20% of each class of train is drawn for it"]
