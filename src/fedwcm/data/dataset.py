"""The one form in which every dataset reaches the rest of the package, and values as it holds them."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import shorten
from fedwcm.data.large_arrays import to_colour
from fedwcm.data.schema import DatasetSchema, Encoding
from fedwcm.utils.text import escape_controls

MAX_CHANNELS = 4
LARGEST_EXACT = 2.0**53

FEW_STEPS = 100
"""A column whose values span fewer steps of float32 has lost too much of what tells them apart."""
SEPARATORS = "|;"

CHUNK = 2**20
"""Values looked at at a time: bounds memory."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification dataset with a training and a test part, and perhaps a validation part; checked when made.

    Images are uint8 or float32 of shape (n, height, width, channels), grey ones with one channel; sequences are
    float32 or integers of shape (n, steps, channels); tables float32 or integers of shape (n, features). Labels
    are int64 from 0 to the number of classes minus 1, and `classes[label]` is the name of a class.

    `client_ids` tells who holds each *training* sample, as int64 from 0 to K-1 with `client_names[id]` the
    name; it is None (and `client_names` empty) where the data comes without clients.

    `group_ids` tells which *training* samples belong together, such as those of a patient, as int64: whatever is
    held out of them is held out with its group. None where nothing was said of groups.

    `test_clients` names who each *test* sample belongs to, where the data tells: clients that train as well or, if
    whole clients are held out, clients that nobody trains on.

    `digest` is that of the source, as it was read before a test part was drawn: the same whatever the seed. It is
    empty for a named data set and for one that was not read.

    `encoding` tells how the samples were made from columns or images; `schema` is all that is needed to read other
    data in the same way.

    A class that has test or validation samples but no training samples is an error, since it could never be
    learnt. A class without test samples is allowed, with a warning: its accuracy cannot be measured.
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    client_ids: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()
    x_val: NDArray[Any] | None = None
    y_val: NDArray[np.int64] | None = None
    encoding: Encoding = field(default_factory=Encoding)
    test_clients: NDArray[np.str_] | None = None
    digest: str = ""
    group_ids: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Refuse data that is not as the class promises."""
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"{self.name}: classes {self.classes!s:.500} holds a name twice")
        for part, x, y in self.parts():
            _check_features(f"{self.name}: x_{part}", x)
            _check_codes(f"{self.name}: y_{part}", y, f"x_{part}", len(x), self.num_classes)
            if x.shape[1:] != self.x_train.shape[1:]:
                raise ValueError(
                    f"{self.name}: samples of x_train have shape {self.x_train.shape[1:]}, "
                    f"those of x_{part} {x.shape[1:]}"
                )
            if self.is_image and len(x) and x.dtype != self.x_train.dtype:
                raise ValueError(
                    f"{self.name}: x_train are images of {self.x_train.dtype}, x_{part} of {x.dtype}: they must "
                    "be alike, since uint8 counts from 0 to 255 and floats are taken as they are"
                )
        if len(self.x_train) == 0:
            raise ValueError(f"{self.name}: x_train is empty: there is nothing to train on")
        names = self.feature_names
        if names and self.x_train.shape[1:] != (len(names),):
            raise ValueError(f"{self.name}: {len(names)} feature names for samples of {self.x_train.shape[1:]}")
        _check_clients(self)
        _check_class_cover(self)
        _warn_of_names(self)

    def parts(self) -> list[tuple[str, NDArray[Any], NDArray[np.int64]]]:
        """Return the name, the samples and the labels of each part: `train`, perhaps `val`, `test`."""
        if (self.x_val is None) != (self.y_val is None):
            raise ValueError(f"{self.name}: x_val and y_val must be given together")
        val = [] if self.x_val is None or self.y_val is None else [("val", self.x_val, self.y_val)]
        return [("train", self.x_train, self.y_train), *val, ("test", self.x_test, self.y_test)]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def is_image(self) -> bool:
        """Whether samples are images."""
        return self.x_train.ndim == 4

    @property
    def is_integer(self) -> bool:
        """Whether samples are integers that are not pixels, such as token ids or counts."""
        return not self.is_image and self.x_train.dtype.kind in "iu"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as a model takes it: (channels, height, width), (steps, channels) or (features,)."""
        return model_shape(self.x_train)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What the inputs of a table are called, in their order; empty for arrays and images."""
        return self.encoding.feature_names

    @property
    def schema(self) -> DatasetSchema:
        """What it takes to read other data for a model that is trained on this."""
        return DatasetSchema(self.classes, self.input_shape, self.x_train.dtype.name, self.encoding)


def model_shape(x: NDArray[Any]) -> tuple[int, ...]:
    """Return the shape of a sample as a model takes it: images with the channels first."""
    if x.ndim == 4:
        height, width, channels = x.shape[1:]
        return (channels, height, width)
    return x.shape[1:]


def _check_features(where: str, x: NDArray[Any]) -> None:
    is_image = x.ndim == 4 and x.dtype in (np.uint8, np.float32)
    is_array = x.ndim in (2, 3) and (x.dtype == np.float32 or x.dtype.kind in "iu")
    if not (is_image or is_array):
        raise ValueError(
            f"{where} is {x.dtype} of shape {x.shape}: images are uint8 or float32 of shape "
            "(n, height, width, channels), sequences float32 or integers of shape (n, steps, channels), tables "
            "float32 or integers of shape (n, features)"
        )
    if 0 in x.shape[1:]:
        raise ValueError(f"{where} has shape {x.shape}: its samples hold no values")
    check_finite(where, x)


def check_finite(where: str, x: NDArray[Any]) -> None:
    """Raise an error that names the first feature that is NaN, infinite or beyond the range of float32."""
    if x.dtype.kind != "f":
        return
    rows = max(1, CHUNK // x[:1].size) if len(x) else 1
    for start in range(0, len(x), rows):
        with np.errstate(over="ignore"):
            finite = np.isfinite(x[start : start + rows].astype(np.float32, copy=False))
        if not finite.all():
            place = np.argwhere(~finite)[0]
            place[0] += start
            raise ValueError(
                f"{where}[{', '.join(map(str, place))}] is {x[tuple(place)]}: every feature must be a finite "
                "number within ±3.4e38, the range of float32"
            )


def _check_codes(where: str, codes: NDArray[np.int64], of: str, count: int, limit: int) -> None:
    """Check that there is one int64 code from 0 to `limit` - 1 per sample."""
    if codes.dtype != np.int64 or codes.ndim != 1:
        raise ValueError(f"{where} is {codes.dtype} of shape {codes.shape}: it must be int64 of shape (n,)")
    if len(codes) != count:
        raise ValueError(f"{where} has {len(codes)} entries but {of} has {count} samples")
    wrong = np.flatnonzero((codes < 0) | (codes >= limit))
    if len(wrong):
        raise ValueError(f"{where}[{wrong[0]}] is {codes[wrong[0]]}: it must be from 0 to {limit - 1}")


def _check_names(data: Dataset) -> None:
    """Refuse names with control characters, which would steer the terminals and logs that show them."""
    for kind, names in {"class": data.classes, "client": data.client_names}.items():
        wrong = next((name for name in names if escape_controls(name) != name), None)
        if wrong is not None:
            raise ValueError(f"{data.name}: the {kind} {wrong!r} has a control character: rename it")


def _check_clients(data: Dataset) -> None:
    _check_names(data)
    if data.client_ids is not None:
        where = f"{data.name}: client_ids"
        _check_codes(where, data.client_ids, "x_train", len(data.x_train), len(data.client_names))
    elif data.client_names:
        raise ValueError(f"{data.name}: client_names is given without client_ids")


def _check_class_cover(data: Dataset) -> None:
    trained = np.bincount(data.y_train, minlength=data.num_classes) > 0
    tested = np.bincount(data.y_test, minlength=data.num_classes) > 0
    held_out = {"test": tested}
    if data.y_val is not None:
        held_out["validation"] = np.bincount(data.y_val, minlength=data.num_classes) > 0
    for part, present in held_out.items():
        if (present & ~trained).any():
            names = quote_names(data.classes[i] for i in np.flatnonzero(present & ~trained))
            raise ValueError(f"{data.name}: no training sample, only {part} samples, of class {names}")
    if not tested.all():
        names = quote_names(data.classes[i] for i in np.flatnonzero(~tested))
        text = f"{data.name}: no test sample of class {names}; its accuracy cannot be measured"
        warnings.warn(text, stacklevel=4)


def _warn_of_names(data: Dataset) -> None:
    """Point out labels and clients that are probably not meant as they are written."""
    if data.num_classes == 1:
        text = f"{data.name} has one class only, {data.classes[0]!r}: every model is right about it"
        warnings.warn(text, stacklevel=4)
    joined = [name for name in data.classes if _is_list(name, set(data.classes))]
    if joined:
        warnings.warn(
            f"{data.name}: {quote_names(joined)} may be several labels in one; each such text is taken as a class "
            "of its own, since a sample has one class here",
            stacklevel=4,
        )
    _warn_of_alike(data, "class", lambda name: name.strip().casefold(), "differ by capitals or spaces alone")
    _warn_of_alike(data, "class", _number_in, "are the same number, written in several ways")
    _warn_of_alike(data, "client", str.strip, "differ by spaces alone")
    _warn_of_alike(data, "client", _number_in, "are the same number, written in several ways")


def _warn_of_alike(data: Dataset, kind: str, key: Callable[[str], object], how: str) -> None:
    names, plural = (data.classes, "classes") if kind == "class" else (data.client_names, "clients")
    alike: dict[object, list[str]] = {}
    for name in names:
        alike.setdefault(key(name), []).append(name)
    doubtful = [name for group in alike.values() if len(group) > 1 for name in group]
    if doubtful:
        text = f"{data.name}: the {plural} {quote_names(doubtful)} {how}: each is a {kind} of its own"
        warnings.warn(text, stacklevel=5)


def _number_in(name: str) -> float | str:
    """Return the number that a name is, else the name: `1`, `01` and `1.0` are one."""
    try:
        number = float(name)
    except ValueError:
        return name
    return number if np.isfinite(number) and name == name.strip() else name


def _is_list(name: str, classes: set[str]) -> bool:
    """Return whether a name looks like a list: `a|b` or `a;b`, or `a,b` where `a` and `b` are classes as well."""
    for separator in SEPARATORS:
        if len([part for part in name.split(separator) if part.strip()]) > 1:
            return True
    pieces = [part.strip() for part in name.split(",")]
    return len(pieces) > 1 and all(piece in classes for piece in pieces)


def quote_names(names: Iterable[object]) -> str:
    """Return up to ten names in quotes, and how many more there are."""
    return shorten(repr(str(name)) for name in names)


def as_whole_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers, and floats that are all whole numbers, as signed integers, and anything else as it is.

    pandas turns integers into floats where a value was missing once, and NumPy unsigned beside signed ones.
    """
    if values.dtype.kind == "u" and (values <= np.iinfo(np.int64).max).all():
        return values.astype(np.int64)
    if values.dtype.kind != "f" or not (np.abs(values) < LARGEST_EXACT).all() or (values % 1 != 0).any():
        return values
    return values.astype(np.int64)


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
    # Images of truth values become floats: as bytes they would pass for pixels from 0 to 255.
    dtype = x.dtype if keeps else np.uint8 if x.dtype.kind == "b" and not is_image else np.float32
    with np.errstate(over="ignore"):  # what overflows becomes infinite, which the Dataset refuses
        return np.ascontiguousarray(x, dtype=dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype)


def match_schema(where: str, x: NDArray[Any], schema: DatasetSchema) -> NDArray[Any]:
    """Return the samples as the model of a schema takes them: of its shape and type."""
    x = as_features(where, x)
    if x.ndim == 4 and x.shape[3] == 1 and schema.input_shape[:1] == (3,):
        x = to_colour(x)  # grey images among coloured ones, as in training
    if model_shape(x) != schema.input_shape:
        raise ValueError(f"{where} have the shape {model_shape(x)}, those of the model {schema.input_shape}")
    if x.ndim == 4 and x.dtype.name != schema.dtype:
        raise ValueError(f"{where} are images of {x.dtype}, those of the model of {schema.dtype}")
    return x


def warn_of_coarse(where: str, values: NDArray[Any], names: Sequence[str] = ()) -> None:
    """Warn of columns far from 0 with values close to each other, such as Unix times, before they are cut.

    Afterwards it is too late: a column that has become constant looks like one that always was.
    """
    if not len(values):
        return
    axes = tuple(range(values.ndim - 1))
    low, high = (reduce(values, axis=axes) for reduce in (np.fmin.reduce, np.fmax.reduce))
    with np.errstate(over="ignore", invalid="ignore"):  # infinite values are refused by another check
        steps = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32))
        coarse = (high > low) & (high - low < FEW_STEPS * steps)
    for i in np.flatnonzero(coarse)[:1]:
        column = repr(names[i]) if names else f"{i} (the first is 0)"
        text = (
            f"{where}: column {column} runs from {low[i]!s} to {high[i]!s}, but float32, in which models compute,"
        )
        warnings.warn(
            f"{text} tells only multiples of {steps[i]:g} apart there: subtract a constant beforehand",
            stacklevel=4,
        )
