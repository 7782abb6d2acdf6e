"""Classes and clients as numbers from 0, whatever they are in the source."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import quote_names
from fedwcm.data.raw import Samples
from fedwcm.data.schema import DatasetSchema, is_whole_number

Codes = NDArray[np.int64]


def encode(values: NDArray[Any]) -> tuple[tuple[str, ...], Codes]:
    """Number the unique values from 0 and return their names and the number of each value.

    Integers, and text that is all whole numbers, are put in numeric order, other text by alphabet.
    """
    unique, codes = np.unique(values, return_inverse=True)
    names = [str(value) for value in unique]
    order = np.arange(len(names))
    if unique.dtype.kind == "U" and all(is_whole_number(name) for name in names):
        order = np.array(sorted(order, key=lambda i: int(names[i])), dtype=np.int64)
    rank = np.argsort(order)
    return tuple(names[i] for i in order), rank[codes].astype(np.int64)


def encode_labels(
    name: str, parts: dict[str, Samples], classes: tuple[str, ...] | None, schema: DatasetSchema | None = None
) -> tuple[tuple[str, ...], dict[str, Codes]]:
    """Return the classes, and the labels of each part as positions in them."""
    _require_alike(name, "labels", {part: samples.labels for part, samples in parts.items()})
    labels = np.concatenate([samples.labels for samples in parts.values()])
    classes, codes = _encode_classes(name, labels, classes)
    if schema is not None:
        classes, codes = schema.classes, _renumber(name, codes, classes, schema.classes)
    cuts = np.cumsum([len(samples.x) for samples in parts.values()])[:-1]
    return classes, dict(zip(parts, np.split(codes, cuts), strict=True))


def _require_alike(name: str, role: str, values: dict[str, NDArray[Any]]) -> None:
    """Refuse labels or clients that are text in one part and numbers in another."""
    kinds = {part: array.dtype for part, array in values.items() if len(array)}
    if len({kind.kind == "U" for kind in kinds.values()}) > 1:
        text = ", ".join(f"{part} {role} are {kind}" for part, kind in kinds.items())
        raise ValueError(f"{name}: {text}: they must all be integers, or all text")


def _encode_classes(
    name: str, labels: NDArray[Any], classes: tuple[str, ...] | None
) -> tuple[tuple[str, ...], Codes]:
    if classes is None:
        return encode(labels)
    if labels.dtype.kind != "U":
        return classes, labels.astype(np.int64)
    names, codes = encode(labels)
    index = {text: i for i, text in enumerate(classes)}
    for label in names:
        if label not in index:
            raise ValueError(f"{name}: label {label!r:.100} is not among the classes {classes!s:.500}")
    return classes, np.array([index[label] for label in names], dtype=np.int64)[codes]


def _renumber(name: str, codes: Codes, classes: tuple[str, ...], known: tuple[str, ...]) -> Codes:
    """Return the codes as positions in the classes of a model, matched by name."""
    wrong = np.flatnonzero((codes < 0) | (codes >= len(classes)))
    if len(wrong):
        raise ValueError(f"{name}: a label is {codes[wrong[0]]}: it must be from 0 to {len(classes) - 1}")
    used = [classes[code] for code in np.unique(codes)]
    strange = [each for each in used if each not in known]
    if strange:
        raise ValueError(
            f"{name} has classes that the model does not know: {quote_names(strange)}; "
            f"it knows {quote_names(known)}"
        )
    positions = {each: i for i, each in enumerate(known)}
    return np.array([positions.get(each, -1) for each in classes], dtype=np.int64)[codes]


def encode_clients(
    name: str, train: NDArray[Any] | None, test: NDArray[Any] | None
) -> tuple[tuple[str, ...], Codes | None]:
    """Number the clients that hold training samples; the others cannot take part and are dropped."""
    if train is None:
        return (), None
    names, ids = encode(train)
    if test is not None:
        _require_alike(name, "clients", {"train": train, "test": test})
    lost = [] if test is None else list(np.setdiff1d(test, train))
    if lost:
        text = f"{name}: no training sample, only test samples, of client {quote_names(lost)}; dropped as client"
        warnings.warn(text, stacklevel=4)
    return names, ids
