"""From what a reader found in a file to a checked `Dataset`, or to rows for a trained model."""

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import MAX_CHANNELS, Dataset, check_finite, listed, model_shape
from fedwcm.data.fingerprint import array_digest, sampled
from fedwcm.data.large_arrays import in_colour, taken
from fedwcm.data.part_names import PARTS
from fedwcm.data.precision import warn_of_coarse
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.schema import DatasetSchema, Encoding, is_whole_number
from fedwcm.data.split import client_split, stratified_split
from fedwcm.data.whole_numbers import LARGEST_EXACT, as_whole_numbers

Codes = NDArray[np.int64]

MOVED = 1000
"""Samples moved at a time."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as a reader found them: features and, where known, labels of any kind, who holds each, and names."""

    x: NDArray[Any]
    y: NDArray[Any] | None = None
    client: NDArray[Any] | None = None
    ids: NDArray[Any] | None = None

    def take(self, rows: NDArray[Any] | slice) -> "Samples":
        """Return the chosen rows (indices or a slice, which copies nothing)."""
        others = (None if values is None else values[rows] for values in (self.y, self.client, self.ids))
        return Samples(taken(self.x, rows), *others)

    @property
    def labels(self) -> NDArray[Any]:
        """The labels, which must be there."""
        if self.y is None:
            raise ValueError("there are no labels")
        return self.y


@dataclass(frozen=True, eq=False)
class Parts:
    """What a reader returns.

    Without `test`, a test part is drawn from `train`, which may have no rows where the source has no training
    part. With `classes`, integer labels are positions in it; without, the classes are the sorted unique labels.
    Arrays that are `owned` by the reader, and by nobody else, may be rearranged. `digest` is that of the source; a
    reader gives it where the samples depend on which of them are drawn for the test part, as those of a table do.
    """

    train: Samples
    test: Samples | None = None
    classes: tuple[str, ...] | None = None
    val: Samples | None = None
    encoding: Encoding = field(default_factory=Encoding)
    owned: bool = False
    digest: str = ""

    def present(self) -> dict[str, Samples]:
        """The parts that there are, by name."""
        parts = {part: getattr(self, part) for part in PARTS}
        return {part: samples for part, samples in parts.items() if samples is not None}


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples for a trained model, read by its schema.

    Args:
        name: what the source is called.
        part: which part they are: `test`, or `all`.
        x: the samples, in the form in which the training samples were before they were normalised.
        y: the model's class of each; None where labels were not asked for.
        ids: what the source calls each, such as the path of an image; None where they are the rows of a table.
        clients: who each belongs to, where the source tells.
    """

    name: str
    part: Literal["test", "all"]
    x: NDArray[Any]
    y: Codes | None
    ids: tuple[str, ...] | None
    clients: NDArray[np.str_] | None = None


def build_dataset(name: str, parts: Parts, options: ReadOptions) -> Dataset:
    """Draw a test part if there is none, number classes and clients from 0, and check the result."""
    parts = _with_whole_numbers(parts)
    for part, samples in parts.present().items():
        _check_lengths(f"{name}: {part} part", samples)
    if parts.test is None:
        if parts.train.x.ndim > 1 and parts.train.x.size and not parts.encoding.columns:
            check_finite(f"{name}: x", parts.train.x)  # while its rows are still those of the source
        parts = draw_test(name, parts, options)
    elif options.test_clients is not None:
        raise ValueError(
            f"test_clients = {options.test_clients!r} is for data without a test part: {name} has one"
        )
    else:
        options.refuse_test_fraction(name)
    train, val, test = parts.train, parts.val, parts.test
    assert test is not None
    if len(test.x) == 0:
        raise ValueError(f"{name}: the test part is empty: give more samples or a larger test fraction")
    present = parts.present()
    classes, codes = _encode_labels(name, present, parts.classes)
    unseen = None if options.test_clients is not None else test.client  # whole clients are meant to be unseen
    client_names, client_ids = _encode_clients(name, train.client, unseen)
    if train.x.dtype == np.float64:
        warn_of_coarse(f"{name}: train features", train.x)
    x = {part: as_features(f"{name}: {part} features", held.x) for part, held in present.items()}
    return Dataset(
        name,
        x["train"],
        codes["train"],
        x["test"],
        codes["test"],
        classes,
        client_ids,
        client_names,
        None if val is None else x["val"],
        None if val is None else codes["val"],
        parts.encoding,
        None if test.client is None else test.client.astype(np.str_),
        parts.digest,
    )


def source_digest(parts: Parts) -> str:
    """Return a digest of what was read, before a test part is drawn: the same whatever the seed."""
    if parts.digest:
        return parts.digest
    held = parts.present().values()
    arrays = [array for part in held for array in (*sampled(part.x), part.y, part.client) if array is not None]
    return array_digest(np.array(parts.classes or (), dtype=np.str_), *arrays)


def build_rows(name: str, parts: Parts, options: ReadOptions) -> Rows:
    """The test part, if there is one and everything was not asked for; else all samples."""
    schema, present = options.schema, _with_whole_numbers(parts).present()
    assert schema is not None
    for part, samples in present.items():
        _check_lengths(f"{name}: {part} part", samples)
    only_test = "test" in present and not options.whole
    chosen = {part: held for part, held in present.items() if part == "test" or not only_test}
    places = {part: f"{name}: x" if len(chosen) == 1 else f"{name}: x_{part}" for part in chosen}
    inputs = {part: matched(places[part], held.x, schema) for part, held in chosen.items()}
    for part, values in inputs.items():
        check_finite(places[part], values)
    x = _joined(list(inputs.values()))
    if len(x) == 0:
        raise ValueError(f"{name} holds no samples")
    y = None
    if options.labelled:
        y = np.concatenate([*_encode_labels(name, chosen, parts.classes, schema)[1].values()])
    ids = [held.ids for held in chosen.values() if held.ids is not None]
    names = tuple(str(each) for each in np.concatenate(ids)) if len(ids) == len(chosen) else None
    holders = [held.client for held in chosen.values() if held.client is not None]
    clients = np.concatenate(holders).astype(np.str_) if len(holders) == len(chosen) else None
    return Rows(name, "test" if only_test else "all", x, y, names, clients)


def draw_test(name: str, parts: Parts, options: ReadOptions) -> Parts:
    """Draw a test part from the training part. The validation part never becomes the test, except for the rows of
    clients that are held out.
    """
    if parts.val is not None and options.test_clients is None:
        text = f"{name} has no test part: {options.test_fraction:.0%} of each class of train is drawn for it"
        warnings.warn(f"{text}; its validation part is for validation only", stacklevel=4)
    keep, held_out = draw_rows(name, parts.train.labels, parts.train.client, options)
    test, val = parts.train.take(held_out), parts.val
    train = _moved_to_front(parts.train, keep) if parts.owned else parts.train.take(keep)
    if val is not None and options.test_clients is not None:
        test, val = _with_own_validation(name, test, val)
    return replace(parts, train=train, test=test, val=val)


def _with_own_validation(name: str, test: Samples, val: Samples) -> tuple[Samples, Samples | None]:
    """Move the validation rows of tested clients to the test: they would choose the model that is tested."""
    if test.client is None or val.client is None:
        text = "the clients of its validation rows are not known: clients that are tested may be among them"
        warnings.warn(f"{name}: {text}", stacklevel=5)
        return test, val
    tested = np.isin(val.client.astype(np.str_), test.client.astype(np.str_))
    whole = [test, val.take(np.flatnonzero(tested))]
    joined = Samples(
        _joined([as_features(f"{name}: features", part.x) for part in whole]),
        _joined([part.labels for part in whole]),
        np.concatenate([part.client.astype(np.str_) for part in whole if part.client is not None]),
    )
    return joined, None if tested.all() else val.take(np.flatnonzero(~tested))


def _moved_to_front(samples: Samples, rows: Codes) -> Samples:
    """These rows, in ascending order, without a second copy: they overwrite those that are not wanted."""
    if not samples.x.flags.writeable:
        return samples.take(rows)
    for start in range(0, len(rows), MOVED):
        chosen = rows[start : start + MOVED]
        samples.x[start : start + len(chosen)] = samples.x[chosen]
    others = (None if values is None else values[rows] for values in (samples.y, samples.client, samples.ids))
    return Samples(samples.x[: len(rows)], *others)


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """The arrays as one; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def draw_rows(
    name: str, labels: NDArray[Any], clients: NDArray[Any] | None, options: ReadOptions
) -> tuple[Codes, Codes]:
    """The rows that stay for training and those drawn for the test: some of each class, or whole clients."""
    rng = np.random.default_rng(options.seed)
    if options.test_clients is None:
        return stratified_split(labels, options.test_fraction, rng)
    clients = clients if options.client_ids is None else options.client_ids
    if clients is not None and len(clients) != len(labels):
        raise ValueError(f"{name}: train part: {len(labels)} samples but {len(clients)} clients")
    if clients is None:
        raise ValueError(
            f"test_clients = {options.test_clients!r} needs data with clients of its own, which {name} does not "
            "have: name their column (--client COLUMN), or pass clients=[…] in Python"
        )
    return client_split(clients, options.test_clients, rng)


def as_features(where: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return samples as a `Dataset` takes them: images as bytes or float32, other floats as float32, integers as
    is.

    Arrays of three dimensions are grey images if they are of unsigned bytes, otherwise sequences (n, steps,
    channels).
    """
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[..., np.newaxis]
    is_image = x.ndim == 4 and x.shape[3] <= MAX_CHANNELS
    if x.dtype.kind not in "buif" or not (is_image or x.ndim in (2, 3)):
        raise ValueError(
            f"{where} are {x.dtype} of shape {x.shape}: images must be numbers of shape (n, height, width, "
            f"channels) with at most {MAX_CHANNELS} channels, or uint8 of shape (n, height, width); sequences "
            "numbers of shape (n, steps, channels), tables numbers of shape (n, features)"
        )
    keeps = x.dtype == np.uint8 if is_image else x.dtype.kind in "iu"
    dtype = x.dtype if keeps else np.uint8 if x.dtype.kind == "b" else np.float32
    with np.errstate(over="ignore"):  # what overflows becomes infinite, which the Dataset refuses
        return np.ascontiguousarray(x, dtype=dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype)


def matched(where: str, x: NDArray[Any], schema: DatasetSchema) -> NDArray[Any]:
    """The samples as the model of a schema takes them: of its shape and type."""
    x = as_features(where, x)
    if x.ndim == 4 and x.shape[3] == 1 and schema.input_shape[:1] == (3,):
        x = in_colour(x)  # grey images among coloured ones, as in training
    if model_shape(x) != schema.input_shape:
        raise ValueError(f"{where} have the shape {model_shape(x)}, those of the model {schema.input_shape}")
    if x.ndim == 4 and x.dtype.name != schema.dtype:
        raise ValueError(f"{where} are images of {x.dtype}, those of the model of {schema.dtype}")
    return x


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


def _with_whole_numbers(parts: Parts) -> Parts:
    """The parts with labels and clients as integers, where they are floats that are all whole."""
    found = {
        part: replace(
            held,
            y=None if held.y is None else as_whole_numbers(held.y),
            client=None if held.client is None else as_whole_numbers(held.client),
        )
        for part, held in parts.present().items()
    }
    return replace(parts, train=found["train"], test=found.get("test"), val=found.get("val"))


def _check_lengths(where: str, samples: Samples) -> None:
    for name, values in (("labels", samples.y), ("clients", samples.client)):
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


def _encode_labels(
    name: str, parts: dict[str, Samples], classes: tuple[str, ...] | None, schema: DatasetSchema | None = None
) -> tuple[tuple[str, ...], dict[str, Codes]]:
    """The classes, and the labels of each part as positions in them."""
    kinds = {part: held.labels.dtype for part, held in parts.items() if len(held.labels)}
    if len({kind.kind == "U" for kind in kinds.values()}) > 1:
        text = ", ".join(f"{part} labels are {kind}" for part, kind in kinds.items())
        raise ValueError(f"{name}: {text}: they must all be integers, or all text")
    labels = np.concatenate([held.labels for held in parts.values()])
    classes, codes = _class_codes(name, labels, classes)
    if schema is not None:
        classes, codes = schema.classes, _renumbered(name, codes, classes, schema.classes)
    cuts = np.cumsum([len(held.x) for held in parts.values()])[:-1]
    return classes, dict(zip(parts, np.split(codes, cuts), strict=True))


def _class_codes(
    name: str, labels: NDArray[Any], classes: tuple[str, ...] | None
) -> tuple[tuple[str, ...], Codes]:
    if classes is None:
        return encode(labels)
    if labels.dtype.kind != "U":
        return classes, labels.astype(np.int64)
    found, codes = encode(labels)
    index = {text: i for i, text in enumerate(classes)}
    for label in found:
        if label not in index:
            raise ValueError(f"{name}: label {label!r:.100} is not among the classes {classes!s:.500}")
    return classes, np.array([index[label] for label in found], dtype=np.int64)[codes]


def _renumbered(name: str, codes: Codes, classes: tuple[str, ...], known: tuple[str, ...]) -> Codes:
    """The codes as positions in the classes of a model, matched by name."""
    wrong = np.flatnonzero((codes < 0) | (codes >= len(classes)))
    if len(wrong):
        raise ValueError(f"{name}: a label is {codes[wrong[0]]}: it must be from 0 to {len(classes) - 1}")
    used = [classes[code] for code in np.unique(codes)]
    strange = [each for each in used if each not in known]
    if strange:
        raise ValueError(
            f"{name} has classes that the model does not know: {listed(strange)}; it knows {listed(known)}"
        )
    positions = {each: i for i, each in enumerate(known)}
    return np.array([positions.get(each, -1) for each in classes], dtype=np.int64)[codes]


def _encode_clients(
    name: str, train: NDArray[Any] | None, test: NDArray[Any] | None
) -> tuple[tuple[str, ...], Codes | None]:
    """Number the clients that hold training samples; the others cannot take part and are dropped."""
    if train is None:
        return (), None
    names, ids = encode(train)
    lost = [] if test is None else list(np.setdiff1d(test, train))
    if lost:
        text = f"{name}: no training sample, only test samples, of client {listed(lost)}; dropped as client"
        warnings.warn(text, stacklevel=4)
    return names, ids
