"""Data that are in memory already: arrays, tensors, data sets of torch, ready-made clients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fedwcm.data.hint import did_you_mean
from fedwcm.data.samples import MAX_CHANNELS, Parts, Samples

ALLOWED = (
    "(x, y), (x_train, y_train, x_test, y_test), a dict of these arrays, a list of each client's (x, y), "
    "a torch.utils.data.Dataset or a pair of them to train and to test on, a pandas DataFrame, "
    "a Hugging Face Dataset, or a fedwcm.Dataset"
)
PAIR, FOUR = 2, 4


def read_arrays(source: object) -> Parts:
    """The parts of data in memory; those of columns (a DataFrame, a Hugging Face set) have readers of their own."""
    if isinstance(source, TorchDataset):
        return Parts(_torch(source), classes=_class_names(source))
    if isinstance(source, tuple) and len(source) == PAIR and all(isinstance(s, TorchDataset) for s in source):
        return Parts(_torch(source[0]), _torch(source[1]), _class_names(source[0]))
    if isinstance(source, tuple) and len(source) == PAIR:
        return Parts(_samples(*source))
    if isinstance(source, tuple) and len(source) == FOUR:
        return Parts(_samples(*source[:2]), _samples(*source[2:]))
    if isinstance(source, Mapping):
        return _clients(source) if all(map(_is_pair, source.values())) else _mapping(source)
    if isinstance(source, list) and source and all(map(_is_pair, source)):
        return _clients(dict(enumerate(source)))
    raise ValueError(f"dataset is a {type(source).__name__}{_sizes(source)}: it must be a source's name or {ALLOWED}")


def as_array(value: object) -> NDArray[Any]:
    """Any array, tensor, series or nested list as NumPy has it, text as text; images with the channels last.

    A tensor of four axes is taken as torch has images, `(n, channels, height, width)`, unless only its last axis
    can be that of the channels.
    """
    if not isinstance(value, torch.Tensor):
        array = np.asarray(value)
        is_text = array.dtype == object and all(isinstance(item, str) for item in array.flat)
        return array.astype(np.str_) if is_text else array
    array = value.detach().cpu().numpy()
    channels_first = array.ndim == FOUR and array.shape[1] <= MAX_CHANNELS
    return np.moveaxis(array, 1, -1) if channels_first else array


def _samples(x: object, y: object, client: object = None) -> Samples:
    return Samples(as_array(x), as_array(y), None if client is None else as_array(client))


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == PAIR and np.ndim(value[0]) > 0


def _clients(held: Mapping[Any, Sequence[object]]) -> Parts:
    """One client for each pair of samples and labels, under its key."""
    pairs = [_samples(*pair) for pair in held.values()]
    names = np.repeat(np.array(list(held)), [len(pair.x) for pair in pairs])
    return Parts(
        Samples(np.concatenate([pair.x for pair in pairs]), np.concatenate([pair.y for pair in pairs]), names)
    )


def _mapping(arrays: Mapping[str, object]) -> Parts:
    """Arrays under the names that they have in an `.npz` file."""
    is_split = "x_train" in arrays
    needed = ("x_train", "y_train", "x_test", "y_test") if is_split else ("x", "y")
    client = "client_train" if is_split else "client"
    known = (*needed, client, "classes")
    for key in arrays:
        if key not in known:
            raise ValueError(f"dataset: unknown array {key!r}{did_you_mean(key, known)}; known are {', '.join(known)}")
    for key in needed:
        if key not in arrays:
            raise ValueError(f"dataset lacks {key!r}: it must hold {', '.join(needed)}")
    names = arrays.get("classes")
    classes = None if names is None else tuple(str(name) for name in as_array(names))
    x, y, *test = (arrays[key] for key in needed)
    return Parts(_samples(x, y, arrays.get(client)), _samples(*test) if test else None, classes)


def _torch(dataset: "TorchDataset[Any]") -> Samples:
    """All samples of a data set of torch, each `(input, label)`."""
    if isinstance(dataset, TensorDataset):
        return _samples(*dataset.tensors[:PAIR])
    name = type(dataset).__name__
    if not hasattr(dataset, "__len__"):
        raise ValueError(f"dataset is a {name} without a length: it must be one that can be indexed")
    rows = [dataset[i] for i in range(len(dataset))]
    if not rows or not isinstance(rows[0], (tuple, list)) or len(rows[0]) < PAIR:
        raise ValueError(f"dataset is a {name}: its samples must be pairs (input, label)")
    if isinstance(rows[0][0], torch.Tensor):
        return _samples(torch.stack([row[0] for row in rows]), [_plain(row[1]) for row in rows])
    return _samples(np.stack([np.asarray(row[0]) for row in rows]), [_plain(row[1]) for row in rows])


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, (torch.Tensor, np.generic)) else label


def _class_names(dataset: object) -> tuple[str, ...] | None:
    """The names that data sets of torchvision know, by the number of the class."""
    names = getattr(dataset, "classes", None)
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else None


def _sizes(source: object) -> str:
    return f" of {len(source)}" if isinstance(source, (tuple, list)) else ""
