"""Arrays of every shape, and how inputs are normalised."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import fedwcm
from fedwcm.config.flags import config_from
from fedwcm.data import load_dataset
from fedwcm.data.inputs import Normalizer, choose_normalizer, warn_of_other_scale
from fedwcm.experiment.partitioning import partition_data

RNG = np.random.default_rng(0)
Y = np.arange(20) % 2


def load(folder: Path, x: Any) -> Any:
    np.savez(folder / "own.npz", x=x, y=Y)
    return load_dataset(folder / "own.npz")


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (RNG.normal(size=(20, 7)), (7,), "float32"),
        (RNG.normal(size=(20, 7)).astype(np.float16), (7,), "float32"),
        (RNG.normal(size=(20, 5, 3)), (5, 3), "float32"),
        (RNG.integers(0, 99, (20, 5, 3)), (5, 3), "int64"),
        (RNG.integers(0, 99, (20, 5), dtype=np.uint16), (5,), "uint16"),
        (RNG.integers(0, 99, (20, 5)).astype(">i4"), (5,), "int32"),
        (RNG.integers(0, 2, (20, 5)).astype(bool), (5,), "uint8"),
        (RNG.integers(0, 99, (20, 5, 4), dtype=np.uint8), (1, 5, 4), "uint8"),
        (RNG.random((20, 5, 4, 3)), (3, 5, 4), "float32"),
        (RNG.integers(0, 999, (20, 5, 4, 1)), (1, 5, 4), "float32"),
        (RNG.integers(0, 99, (20, 5, 4, 3), dtype=np.uint8), (3, 5, 4), "uint8"),
    ],
)
def test_arrays_of_any_shape_are_taken(tmp_path: Path, x: Any, shape: tuple[int, ...], dtype: str) -> None:
    data = load(tmp_path, x)
    assert data.input_shape == shape
    assert data.x_train.dtype == np.dtype(dtype)
    values = np.concatenate([data.x_train, data.x_test]).astype(np.float64).ravel()
    assert np.array_equal(np.sort(values), np.sort(x.astype(data.x_train.dtype).astype(np.float64).ravel()))


def test_a_value_that_is_not_finite_is_found_in_any_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedwcm.data import dataset

    monkeypatch.setattr(dataset, "CHUNK", 10)
    x = np.zeros((20, 5, 3), np.float32)
    x[17, 4, 2] = np.inf
    np.savez(tmp_path / "own.npz", x_train=x, y_train=Y, x_test=x[:2], y_test=Y[:2])
    with pytest.raises(ValueError, match=r"x_train\[17, 4, 2\] is inf"):
        load_dataset(tmp_path / "own.npz")


# Normalisation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2500, 3), (2500, 4, 3), (2500, 4, 5, 3)])
def test_standard_inputs_have_mean_0_and_deviation_1(shape: tuple[int, ...]) -> None:
    x = RNG.normal(5, 3, shape).astype(np.float32)
    normalizer, text = choose_normalizer(x, "standard")
    out = normalizer(x)
    last_axis = np.moveaxis(out, 1, -1) if len(shape) == 4 else out
    axes = tuple(range(len(shape) - 1))
    assert last_axis.mean(axis=axes) == pytest.approx(0, abs=1e-5)
    assert last_axis.std(axis=axes) == pytest.approx(1, abs=1e-5)
    assert out.flags.c_contiguous
    assert "2500 training samples" in text


def test_chunks_change_nothing() -> None:
    x = RNG.integers(0, 256, (2300, 4, 5, 3), dtype=np.uint8)
    normalizer = Normalizer.fit(x)
    expected = np.moveaxis((x.astype(np.float32) - normalizer.mean) / normalizer.std, -1, 1)
    assert np.array_equal(normalizer(x), expected)


@pytest.mark.parametrize(
    ("how", "embeds", "dtype", "words"),
    [
        ("auto", True, np.int64, "kept as integers"),
        ("none", True, np.int64, "kept as integers"),
        ("auto", False, np.float32, "standardised per column .* if they are ids"),
        ("standard", True, np.float32, "standardised per column"),
        ("none", False, np.float32, "taken as they are"),
    ],
)
def test_integers_stay_integers_for_an_embedding(how: Any, embeds: bool, dtype: Any, words: str) -> None:
    import re

    x = RNG.integers(0, 500, (50, 6), dtype=np.uint16)
    normalizer, text = choose_normalizer(x, how, embeds=embeds)
    assert normalizer(x).dtype == dtype
    assert re.search(words, text)
    if how == "none" or dtype == np.int64:
        assert np.array_equal(normalizer(x), x)


def test_pixels_are_never_taken_for_ids() -> None:
    x = RNG.integers(0, 256, (50, 4, 4, 1), dtype=np.uint8)
    normalizer, text = choose_normalizer(x, "auto", embeds=True)
    assert normalizer(x).dtype == np.float32
    assert "standardised per channel" in text


def test_fractions_are_refused_where_integers_are_kept() -> None:
    normalizer, _ = choose_normalizer(np.zeros((4, 2), np.int64), "auto", embeds=True)
    assert normalizer(np.ones((2, 2), np.float32)).dtype == np.int64
    with pytest.raises(ValueError, match=r"inputs\[1, 0\] is 1\.5: the model takes whole numbers"):
        normalizer(np.array([[1.0, 2.0], [1.5, 2.0]]))


@pytest.mark.parametrize(
    ("how", "expected"),
    [((10, 2), [-4.5, -4.0, -3.5]), (((1, 2, 3), (1, 2, 4)), [0, 0, 0]), (((1, 2, 3), 2), [0, 0, 0])],
)
def test_mean_and_deviation_may_be_given_in_the_units_of_the_data(how: Any, expected: list[float]) -> None:
    x = np.array([[1, 2, 3]], np.float32)
    normalizer, text = choose_normalizer(x, how)
    assert normalizer(x).tolist() == [expected]
    assert "given" in text


@pytest.mark.parametrize("how", [(1,), (1, 0), (1, -1), (1, 2, 3), ((1, 2), (1, 2)), (float("nan"), 1), "mean"])
def test_a_wrong_pair_is_refused_with_what_is_allowed(how: Any) -> None:
    with pytest.raises(ValueError, match=r"data\.normalize = .* is not allowed: .* a list of 3 numbers"):
        choose_normalizer(np.zeros((4, 3), np.float32), how)


# From the command line ------------------------------------------------------------------------------


def test_options_reach_the_reader(tmp_path: Path) -> None:
    lines = [f"{i},{'' if i == 3 else i},Ä{i % 2},n{i}" for i in range(20)]
    (tmp_path / "own.csv").write_bytes("\n".join(["a,b,kind,note_1", *lines]).encode("latin-1"))
    config = config_from(
        dataset=str(tmp_path / "own.csv"),
        label="kind",
        drop="note_*",
        features="b",
        impute="median",
        encoding="latin-1",
        normalize="0,2",
        clients=2,
    )
    assert config.data.drop == ("note_*",)
    assert config.data.normalize == (0.0, 2.0)
    data = partition_data(config)
    assert data.dataset.feature_names == ("b",)
    assert data.dataset.classes == ("Ä0", "Ä1")
    rows = data.dataset.x_train
    assert np.array_equal(data.normalizer(rows), rows / 2)
    assert "given" in data.normalization


@pytest.mark.parametrize(
    ("value", "message"), [("bogus", "data.normalize = 'bogus'"), ([1, "a"], "data.normalize")]
)
def test_a_wrong_normalization_is_refused_early(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from(normalize=value)


def test_where_there_is_a_validation_part_none_is_drawn(tmp_path: Path) -> None:
    x = RNG.normal(size=(20, 3))
    np.savez(tmp_path / "own.npz", x_train=x, y_train=Y, x_val=x[:6], y_val=Y[:6], x_test=x, y_test=Y)
    source = str(tmp_path / "own.npz")
    data = partition_data(config_from(dataset=source, clients=2))
    assert len(data.train_rows) == 20
    assert len(data.val_rows) == 0
    with pytest.raises(ValueError, match=r"data\.val_fraction = 0\.5 .* for own, which has a validation part"):
        partition_data(config_from(dataset=source, clients=2, val_fraction=0.5))


class Bag(nn.Module):
    """The mean of the embedded tokens."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(60, 8), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.table(x).mean(dim=1))
        return scores


@pytest.mark.parametrize("backend", ["sequential", "vectorized"])
def test_token_ids_reach_an_embedding_as_they_are(tmp_path: Path, backend: Any) -> None:
    x = np.random.default_rng(0).integers(0, 30, (200, 6), dtype=np.uint16)
    y = np.arange(200) % 2
    x[:, 0] = 40 + y  # the first token tells the class
    options: Any = {"clients": 4, "beta": 10, "participation": 1.0, "rounds": 15, "lr": 1.0, "out": tmp_path}
    result = fedwcm.run("fedavg", dataset=(x, y), model=Bag, backend=backend, report=False, **options)
    assert result.summary.final_accuracy == 1.0
    assert fedwcm.load_normalizer(tmp_path)(x[:5]).tolist() == x[:5].tolist()


@pytest.mark.parametrize("folder", [False, True], ids=["npz", "npy"])
def test_a_part_goes_by_any_of_its_names_in_capitals_or_not(tmp_path: Path, folder: bool) -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 2
    arrays: Any = {"X_train": x, "Y_Train": y, "x_validation": x[:6], "y_dev": y[:6]}
    arrays |= {"X_TEST": x[:4], "y_testing": y[:4]}
    if folder:
        for name, values in arrays.items():
            np.save(tmp_path / f"{name}.npy", values)
    else:
        np.savez(tmp_path / "data.npz", **arrays)
    data = load_dataset(tmp_path if folder else tmp_path / "data.npz")
    assert data.y_val is not None
    assert [len(part) for part in (data.y_train, data.y_val, data.y_test)] == [12, 6, 4]
    with pytest.raises(ValueError, match="two arrays for 'y_val', 'y_dev' and 'y_valid'"):
        load_dataset({**arrays, "y_valid": y[:6]})


@pytest.mark.parametrize("options", [{"imbalance": 0.1}, {"val_fraction": 0.5}], ids=["long tail", "validation"])
def test_a_client_that_is_left_without_training_samples_is_told(options: dict[str, Any]) -> None:
    x, y = np.zeros((60, 2), dtype=np.float32), np.tile(np.arange(3), 20)
    test = np.zeros((3, 2), dtype=np.float32), np.arange(3)
    with pytest.warns(UserWarning, match="leave no training sample of client '.*dropped as client"):
        division = fedwcm.partition(dataset=(x, y, *test), clients=np.arange(60), **options)
    assert len(division.counts) < 60


def test_inputs_in_other_units_than_in_training_are_warned_of_once(recwarn: pytest.WarningsRecorder) -> None:
    rng = np.random.default_rng(0)
    trained = np.concatenate([rng.normal(50, 9, size=(300, 3)), rng.integers(2, size=(300, 2))], axis=1)
    normalizer, new = Normalizer.fit(trained), trained[:40]
    for harmless in (new, new[:1], new[:, :5] + [30, 0, 0, 0, 0], np.zeros((0, 5)), new[:5] / 16):
        warn_of_other_scale(harmless, normalizer)
    warn_of_other_scale(new / 16, Normalizer(np.zeros(1, np.float32), np.ones(1, np.float32)))
    assert not recwarn.list
    warn_of_other_scale(new * [1, 1000, 1, 1, 1], normalizer, ("age", "height", "weight", "a", "b"))
    warn_of_other_scale(new / 16, normalizer)
    warn_of_other_scale(new * 16, normalizer)
    words = ["column 'height' has a value", "they spread 0.06", "they spread 16 times"]
    assert [word in str(warning.message) for word, warning in zip(words, recwarn.list, strict=True)] == [True] * 3
