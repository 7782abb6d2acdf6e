"""From what a reader found in a file to a checked `Dataset`."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import Dataset
from fedwcm.data.split import stratified_split

MAX_CHANNELS = 4


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as a reader found them: features, labels of any kind and, where known, who holds each."""

    x: NDArray[Any]
    y: NDArray[Any]
    client: NDArray[Any] | None = None

    def take(self, rows: NDArray[Any]) -> "Samples":
        """Return the chosen rows (indices or a mask)."""
        return Samples(self.x[rows], self.y[rows], None if self.client is None else self.client[rows])


@dataclass(frozen=True, eq=False)
class Parts:
    """What a reader returns.

    Without `test`, a test part is drawn from `train`. With `classes`, integer labels are positions in it;
    without, the classes are the sorted unique labels.
    """

    train: Samples
    test: Samples | None = None
    classes: tuple[str, ...] | None = None


def build_dataset(name: str, parts: Parts, test_fraction: float, seed: int) -> Dataset:
    """Draw a test part if there is none, number classes and clients from 0, and check the result."""
    train, test = parts.train, parts.test
    for part, samples in (("train", train), ("test", test)):
        if samples is not None:
            _check_lengths(f"{name}: {part} part", samples)
    if test is None:
        train, test = _draw_test(train, test_fraction, seed)
    if len(test.y) == 0:
        raise ValueError(f"{name}: the test part is empty: give more samples or a larger test fraction")
    classes, y_train, y_test = _encode_labels(name, train.y, test.y, parts.classes)
    client_names, client_ids = _encode_clients(name, train.client, test.client)
    return Dataset(
        name,
        as_features(f"{name}: training features", train.x),
        y_train,
        as_features(f"{name}: test features", test.x),
        y_test,
        classes,
        client_ids,
        client_names,
    )


def as_features(where: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return images as uint8 (n, height, width, channels) and everything else as a float32 table."""
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[..., np.newaxis]
    if x.ndim == 4 and x.dtype == np.uint8 and x.shape[3] <= MAX_CHANNELS:
        return np.ascontiguousarray(x)
    if x.ndim == 2 and x.dtype.kind in "buif":
        with np.errstate(over="ignore"):  # what overflows becomes infinite, which the Dataset refuses
            return np.ascontiguousarray(x, dtype=np.float32)
    raise ValueError(
        f"{where} are {x.dtype} of shape {x.shape}: images must be uint8 of shape (n, height, width) or "
        f"(n, height, width, channels) with at most {MAX_CHANNELS} channels, tables numbers of shape "
        "(n, features)"
    )


def encode(values: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Number the unique values from 0 and return their names and the number of each value.

    Integers, and text that is all whole numbers, are put in numeric order, other text by alphabet.
    """
    unique, codes = np.unique(values, return_inverse=True)
    names = [str(value) for value in unique]
    order = np.arange(len(names))
    if unique.dtype.kind == "U" and all(_is_whole_number(name) for name in names):
        order = np.array(sorted(order, key=lambda i: int(names[i])), dtype=np.int64)
    rank = np.argsort(order)
    return tuple(names[i] for i in order), rank[codes].astype(np.int64)


def _is_whole_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(text)) == text


def _check_lengths(where: str, samples: Samples) -> None:
    for field, values in (("labels", samples.y), ("clients", samples.client)):
        if values is None:
            continue
        if values.ndim != 1 or values.dtype.kind not in "biuU":
            raise ValueError(
                f"{where}: {field} are {values.dtype} of shape {values.shape}: "
                "they must be integers or text of shape (n,)"
            )
        if len(values) != len(samples.x):
            raise ValueError(f"{where}: {len(samples.x)} samples but {len(values)} {field}")


def _draw_test(samples: Samples, fraction: float, seed: int) -> tuple[Samples, Samples]:
    keep, held_out = stratified_split(samples.y, fraction, np.random.default_rng(seed))
    return samples.take(keep), samples.take(held_out)


def _encode_labels(
    name: str, train: NDArray[Any], test: NDArray[Any], classes: tuple[str, ...] | None
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
    if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
        raise ValueError(f"{name}: training labels are {train.dtype} but test labels are {test.dtype}")
    labels = np.concatenate([train, test])
    if classes is None:
        classes, codes = encode(labels)
    elif labels.dtype.kind == "U":
        codes = _positions(name, labels, classes)
    else:
        codes = labels.astype(np.int64)
    return classes, codes[: len(train)], codes[len(train) :]


def _positions(name: str, labels: NDArray[Any], classes: tuple[str, ...]) -> NDArray[np.int64]:
    index = {text: i for i, text in enumerate(classes)}
    for label in np.unique(labels):
        if str(label) not in index:
            raise ValueError(f"{name}: label {str(label)!r} is not among the classes {classes}")
    return np.array([index[str(label)] for label in labels], dtype=np.int64)


def _encode_clients(
    name: str, train: NDArray[Any] | None, test: NDArray[Any] | None
) -> tuple[tuple[str, ...], NDArray[np.int64] | None]:
    """Number the clients that hold training samples; the others cannot take part and are dropped."""
    if train is None:
        return (), None
    names, ids = encode(train)
    lost = [] if test is None else [repr(str(c)) for c in np.setdiff1d(test, train)]
    if lost:
        text = f"{name}: no training sample, only test samples, of client {', '.join(lost)}; dropped as client"
        warnings.warn(text, stacklevel=4)
    return names, ids
