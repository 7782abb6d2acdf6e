"""The one form in which every dataset reaches the rest of the package."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification dataset with a training and a test part, checked when it is made.

    Images are uint8 of shape (n, height, width, channels), grey ones with one channel; tables are float32
    of shape (n, features). Labels are int64 from 0 to the number of classes minus 1, and `classes[label]`
    is the name of a class.

    `client_ids` tells who holds each *training* sample, as int64 from 0 to K-1 with `client_names[id]` the
    name; it is None (and `client_names` empty) where the data comes without clients.

    A class that has test samples but no training samples is an error, since it could never be learnt.
    A class without test samples is allowed, with a warning: its accuracy cannot be measured.
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    client_ids: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse data that is not as the class promises."""
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"{self.name}: classes {self.classes} holds a name twice")
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            _check_features(f"{self.name}: x_{part}", x)
            _check_codes(f"{self.name}: y_{part}", y, f"x_{part}", len(x), self.num_classes)
        if len(self.x_train) == 0:
            raise ValueError(f"{self.name}: x_train is empty: there is nothing to train on")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise ValueError(
                f"{self.name}: samples of x_train have shape {self.x_train.shape[1:]}, "
                f"those of x_test {self.x_test.shape[1:]}"
            )
        _check_clients(self)
        _check_class_cover(self)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def is_image(self) -> bool:
        """Whether samples are images (otherwise they are rows of a table)."""
        return self.x_train.ndim == 4

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as a model takes it: (channels, height, width) or (features,)."""
        if self.is_image:
            height, width, channels = self.x_train.shape[1:]
            return (channels, height, width)
        return (self.x_train.shape[1],)


def _check_features(where: str, x: NDArray[Any]) -> None:
    is_image = x.ndim == 4 and x.dtype == np.uint8
    is_table = x.ndim == 2 and x.dtype == np.float32
    if not (is_image or is_table):
        raise ValueError(
            f"{where} is {x.dtype} of shape {x.shape}: images are uint8 of shape "
            "(n, height, width, channels), tables float32 of shape (n, features)"
        )
    if 0 in x.shape[1:]:
        raise ValueError(f"{where} has shape {x.shape}: its samples hold no values")
    if is_table and not (finite := np.isfinite(x)).all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(f"{where}[{row}, {column}] is {x[row, column]}: every feature must be a finite number")


def _check_codes(where: str, codes: NDArray[np.int64], of: str, count: int, limit: int) -> None:
    """Check that there is one int64 code from 0 to `limit` - 1 per sample."""
    if codes.dtype != np.int64 or codes.ndim != 1:
        raise ValueError(f"{where} is {codes.dtype} of shape {codes.shape}: it must be int64 of shape (n,)")
    if len(codes) != count:
        raise ValueError(f"{where} has {len(codes)} entries but {of} has {count} samples")
    wrong = np.flatnonzero((codes < 0) | (codes >= limit))
    if len(wrong):
        raise ValueError(f"{where}[{wrong[0]}] is {codes[wrong[0]]}: it must be from 0 to {limit - 1}")


def _check_clients(data: Dataset) -> None:
    if data.client_ids is not None:
        where = f"{data.name}: client_ids"
        _check_codes(where, data.client_ids, "x_train", len(data.x_train), len(data.client_names))
    elif data.client_names:
        raise ValueError(f"{data.name}: client_names is given without client_ids")


def _check_class_cover(data: Dataset) -> None:
    trained = np.bincount(data.y_train, minlength=data.num_classes) > 0
    tested = np.bincount(data.y_test, minlength=data.num_classes) > 0
    if (tested & ~trained).any():
        names = _named(data.classes, tested & ~trained)
        raise ValueError(f"{data.name}: no training sample, only test samples, of class {names}")
    if not tested.all():
        names = _named(data.classes, ~tested)
        text = f"{data.name}: no test sample of class {names}; its accuracy cannot be measured"
        warnings.warn(text, stacklevel=4)


def _named(classes: tuple[str, ...], chosen: NDArray[np.bool_]) -> str:
    names = [repr(classes[i]) for i in np.flatnonzero(chosen)]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
