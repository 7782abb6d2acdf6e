"""From what a reader returns to a checked `Dataset`, with warnings of leaks, or to rows for a trained model."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import (
    LARGEST_EXACT,
    Dataset,
    as_features,
    as_whole_numbers,
    check_finite,
    match_schema,
    quote_names,
    warn_of_coarse,
)
from fedwcm.data.fingerprint import array_digest, sample_rows
from fedwcm.data.large_arrays import join_arrays
from fedwcm.data.named import DATASETS
from fedwcm.data.raw import InferenceRows, RawSplits, Samples
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.schema import DatasetSchema, is_whole_number
from fedwcm.data.split import draw_test

Codes = NDArray[np.int64]


def build_dataset(name: str, splits: RawSplits, options: ReadOptions) -> Dataset:
    """Draw a test part if there is none, number classes and clients from 0, and check the result."""
    splits = _with_whole_numbers(splits)
    for part, samples in splits.parts.items():
        _check_lengths(f"{name}: {part} part", samples)
    splits = _with_test(name, splits, options)
    present = {"train": splits.train, **splits.parts}
    train, test = present["train"], present["test"]
    if len(test.x) == 0:
        raise ValueError(f"{name}: the test part is empty: give more samples or a larger test fraction")
    refuse_divided_groups(name, present)
    classes, codes = encode_labels(name, present, splits.classes)
    unseen = None if options.test_clients is not None else test.client  # whole clients are meant to be unseen
    client_names, client_ids = encode_clients(name, train.client, unseen)
    if train.x.dtype == np.float64:
        warn_of_coarse(f"{name}: train features", train.x)
    x = {part: as_features(f"{name}: {part} features", samples.x) for part, samples in present.items()}
    dataset = Dataset(
        name=name,
        x_train=x["train"],
        y_train=codes["train"],
        x_test=x["test"],
        y_test=codes["test"],
        classes=classes,
        client_ids=client_ids,
        client_names=client_names,
        x_val=x.get("val"),
        y_val=codes.get("val"),
        encoding=splits.encoding,
        test_clients=None if test.client is None else test.client.astype(np.str_),
        digest=splits.digest,
        group_ids=None if train.group is None else encode(train.group)[1],
    )
    if name not in DATASETS:
        warn_of_leaks(dataset)
    return dataset


def _with_test(name: str, splits: RawSplits, options: ReadOptions) -> RawSplits:
    if "test" not in splits.parts:
        if splits.train.x.ndim > 1 and splits.train.x.size and not splits.encoding.columns:
            check_finite(f"{name}: x", splits.train.x)  # while its rows are still those of the source
        return draw_test(name, splits, options)
    if options.test_clients is not None:
        raise ValueError(
            f"test_clients = {options.test_clients!r} is for data without a test part: {name} has one"
        )
    options.refuse_test_fraction(name)
    return splits


def source_digest(splits: RawSplits) -> str:
    """Return a digest of what was read, before a test part is drawn: the same whatever the seed."""
    if splits.digest:
        return splits.digest
    arrays = [array for each in splits.parts.values() for array in (*sample_rows(each.x), each.y, each.client)]
    return array_digest(
        np.array(splits.classes or (), dtype=np.str_), *(array for array in arrays if array is not None)
    )


def build_rows(name: str, splits: RawSplits, options: ReadOptions) -> InferenceRows:
    """Return the test part, if there is one and everything was not asked for; else all samples."""
    schema, present = options.schema, _with_whole_numbers(splits).parts
    assert schema is not None
    for part, samples in present.items():
        _check_lengths(f"{name}: {part} part", samples)
    only_test = "test" in present and not options.whole
    chosen = {part: samples for part, samples in present.items() if part == "test" or not only_test}
    places = {part: f"{name}: x" if len(chosen) == 1 else f"{name}: x_{part}" for part in chosen}
    inputs = {part: match_schema(places[part], samples.x, schema) for part, samples in chosen.items()}
    for part, values in inputs.items():
        check_finite(places[part], values)
    x = join_arrays(list(inputs.values()))
    if len(x) == 0:
        raise ValueError(f"{name} holds no samples")
    y = None
    if options.labelled:
        y = np.concatenate([*encode_labels(name, chosen, splits.classes, schema)[1].values()])
    ids = [samples.ids for samples in chosen.values() if samples.ids is not None]
    names = tuple(str(each) for each in np.concatenate(ids)) if len(ids) == len(chosen) else None
    holders = [samples.client for samples in chosen.values() if samples.client is not None]
    clients = np.concatenate(holders).astype(np.str_) if len(holders) == len(chosen) else None
    return InferenceRows(name, "test" if only_test else "all", x, y, names, clients)


def _with_whole_numbers(splits: RawSplits) -> RawSplits:
    """Return the parts with labels and clients as integers, where they are floats that are all whole."""
    converted = {}
    for part, samples in splits.parts.items():
        values = {role: getattr(samples, role) for role in ("y", "client", "group")}
        whole = {role: as_whole_numbers(array) for role, array in values.items() if array is not None}
        converted[part] = replace(samples, **whole)
    return replace(splits, parts=converted)


def _check_lengths(where: str, samples: Samples) -> None:
    for name, values in (("labels", samples.y), ("clients", samples.client), ("groups", samples.group)):
        if values is None:
            continue
        if values.ndim == 1 and values.dtype.kind == "f":
            wrong = ~(np.abs(values) < LARGEST_EXACT) | (values != np.round(values))
            row = int(np.argmax(wrong))
            raise ValueError(
                f"{where}: {name} must be whole numbers or text, but that of row {row} is {values[row]}"
            )
        if values.ndim != 1 or values.dtype.kind not in "biuU":
            raise ValueError(
                f"{where}: {name} are {values.dtype} of shape {values.shape}: "
                "they must be integers, floats that are whole numbers, or text, of shape (n,)"
            )
        if len(values) != (count := len(np.atleast_1d(samples.x))):
            raise ValueError(f"{where}: {count} samples but {len(values)} {name}")


def encode(values: NDArray[Any]) -> tuple[tuple[str, ...], Codes]:
    """Give the unique values numbers from 0, and return their names and the number of each value.

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
    unknown = [each for each in used if each not in known]
    if unknown:
        raise ValueError(
            f"{name} has classes that the model does not know: {quote_names(unknown)}; "
            f"it knows {quote_names(known)}"
        )
    positions = {each: i for i, each in enumerate(known)}
    return np.array([positions.get(each, -1) for each in classes], dtype=np.int64)[codes]


def encode_clients(
    name: str, train: NDArray[Any] | None, test: NDArray[Any] | None
) -> tuple[tuple[str, ...], Codes | None]:
    """Give numbers to the clients that hold training samples; the others cannot take part and are dropped."""
    if train is None:
        return (), None
    names, ids = encode(train)
    if test is not None:
        _require_alike(name, "clients", {"train": train, "test": test})
    absent = [] if test is None else list(np.setdiff1d(test, train))
    if absent:
        text = f"{name}: no training sample, only test samples, of client {quote_names(absent)}; dropped as client"
        warnings.warn(text, stacklevel=4)
    return names, ids


FEW_ROWS = 20
"""Below this many training rows, a column may agree with the label by chance."""

COMPARED_BYTES = 2**28
"""Bytes of inputs up to which training and test rows are compared."""

CHUNK = 1000


def warn_of_leaks(data: Dataset) -> None:
    """Warn of a column that tells the class of every row, and of test rows that are training rows as well."""
    if data.x_train.ndim == 2 and len(data.x_train) >= FEW_ROWS:
        _warn_of_label(data)
    if data.x_train.nbytes + data.x_test.nbytes <= COMPARED_BYTES:
        trained = {row.tobytes() for row in data.x_train}
        shared = sum(row.tobytes() in trained for row in data.x_test)
        if shared:
            text = f"{data.name}: {shared} of {len(data.x_test)} test rows equal a training row"
            cure = "if they are copies, the result is too good: remove them, or keep them together with --group"
            warnings.warn(f"{text}: {cure}", stacklevel=4)


def _warn_of_label(data: Dataset) -> None:
    """Warn if a column has one value for each class, another for every other."""
    present, first, counts = np.unique(data.y_train, return_index=True, return_counts=True)
    if len(present) < 2 or counts.min() < 2:
        return
    values = np.zeros((data.num_classes, data.x_train.shape[1]), dtype=data.x_train.dtype)
    values[present] = data.x_train[first]
    constant = np.ones(data.x_train.shape[1], dtype=bool)
    for start in range(0, len(data.x_train), CHUNK):
        rows = slice(start, start + CHUNK)
        constant &= (data.x_train[rows] == values[data.y_train[rows]]).all(axis=0)
        if not constant.any():
            return
    columns = data.encoding.columns
    widths = [len(column.feature_names) for column in columns] or [1] * data.x_train.shape[1]
    names = [column.name for column in columns] or range(data.x_train.shape[1])
    for name, start, width in zip(names, np.cumsum([0, *widths]), widths, strict=False):
        block = slice(start, start + width)
        if constant[block].all() and len(np.unique(values[present][:, block], axis=0)) == len(present):
            text = f"{data.name}: column {name!r} tells the class of every training row, one to one"
            warnings.warn(f"{text}: if it is another form of the label, leave it out (--drop)", stacklevel=5)
            return


def refuse_divided_groups(name: str, parts: dict[str, Samples]) -> None:
    """Refuse parts of which two have samples of one group."""
    groups = {part: samples.group for part, samples in parts.items() if len(samples.x)}
    if all(values is None for values in groups.values()):
        return
    seen: dict[str, str] = {}
    for part, values in groups.items():
        if values is None:
            raise ValueError(f"{name}: the groups of the {part} part are not known, those of others are")
        own = [str(value) for value in np.unique(values)]
        if both := [group for group in own if group in seen]:
            raise ValueError(
                f"{name}: the groups {quote_names(both)} have samples in {part} and in {seen[both[0]]}: a group "
                "must be in one part"
            )
        seen.update(dict.fromkeys(own, part))
