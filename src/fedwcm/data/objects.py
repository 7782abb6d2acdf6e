"""Data that are in memory already: arrays, tensors, tables, data sets of torch and of Hugging Face, clients."""

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fedwcm.data.dataset import MAX_CHANNELS, Dataset, quote_names
from fedwcm.data.formats.arrays import split_arrays
from fedwcm.data.raw import RawSplits, Samples, name_parts, part_of
from fedwcm.data.read_options import COLUMNS, ReadOptions

ALLOWED = (
    "(x, y), (x_train, y_train, x_test, y_test), ((x_train, y_train), (x_test, y_test)), a dict of these arrays, "
    "a dict of the parts' (x, y) by 'train', 'val' and 'test', a list or dict of each client's (x, y), "
    "a torch.utils.data.Dataset or a pair of them to train and to test on, a pandas DataFrame, "
    "a Hugging Face Dataset, or a fedwcm.Dataset"
)
COLUMN_OPTIONS = (*COLUMNS, "image_size")
PAIR, FOUR = 2, 4


def read_object(source: Any, options: ReadOptions) -> tuple[str, RawSplits]:
    """Read data in memory; return its name and its parts."""
    name = type(source).__name__
    if _comes_from(source, "pandas"):
        from fedwcm.data.formats.table import read_frame  # needs pyarrow and Pillow

        options.refuse(f"this {name}", "a DataFrame", COLUMN_OPTIONS)
        return name, read_frame(name, source, options)
    if _comes_from(source, "datasets"):
        from fedwcm.data.formats.hub import read_hub_splits

        allowed = tuple(option for option in COLUMN_OPTIONS if option not in ("split", "unlabelled"))
        options.refuse(f"this {name}", "a Hugging Face Dataset", allowed)
        return name, read_hub_splits(name, source if isinstance(source, Mapping) else {"train": source}, options)
    options.refuse(f"this {name}", "data without columns", ())
    if isinstance(source, TorchDataset):
        return name, RawSplits({"train": _read_torch(source, options)}, _class_names(source))
    kind = "clients" if _are_clients(source) and not _are_parts(source) else "arrays"
    return kind, _read_memory(source, options)


def as_parts(dataset: Dataset, options: ReadOptions) -> RawSplits:
    """Return the parts of a data set that is made already, its inputs in the order in which a model has them."""
    order: Any = slice(None)
    names, known = dataset.feature_names, options.known.feature_names if options.known is not None else ()
    if names and known and names != known:
        missing, unknown = (
            [name for name in known if name not in names],
            [name for name in names if name not in known],
        )
        if missing or unknown:
            raise ValueError(
                f"{dataset.name} has other inputs than the model: it lacks {quote_names(missing) or 'none'} and "
                f"has {quote_names(unknown) or 'none'} besides"
            )
        order = [names.index(name) for name in known]
    parts = {part: Samples(x[..., order], y) for part, x, y in dataset.parts()}
    return RawSplits(parts, dataset.classes, options.known or dataset.encoding)


def as_array(value: object) -> NDArray[Any]:
    """Return an array, tensor, series or nested list as NumPy has it, text as text, images with the channels last.

    A tensor of four axes is taken as torch has images, `(n, channels, height, width)`, unless only its last axis
    can be that of the channels.
    """
    if not isinstance(value, torch.Tensor):
        _refuse_sparse_and_masked(value)
        array = np.asarray(value)
        if array.dtype.kind == "U" and isinstance(value, (list, tuple)) and len(set(map(type, value))) > 1:
            kinds = quote_names(sorted({type(item).__name__ for item in value}))
            raise ValueError(f"an array holds {kinds} together: its values must all be text, or all numbers")
        is_text = array.dtype == object and all(isinstance(item, str) for item in array.flat)
        return array.astype(np.str_) if is_text else array
    if value.layout != torch.strided:
        raise ValueError("an array is a sparse tensor: pass a dense one, tensor.to_dense()")
    value = value.detach().cpu()
    array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # NumPy has no bfloat16
    channels_first = array.ndim == FOUR and array.shape[1] <= MAX_CHANNELS
    return np.moveaxis(array, 1, -1) if channels_first else array


def _refuse_sparse_and_masked(value: object) -> None:
    name = type(value).__name__
    if callable(getattr(value, "toarray", None)) and _comes_from(value, "scipy"):
        raise ValueError(f"an array is a sparse {name} of scipy: pass a dense one, array.toarray()")
    if isinstance(value, np.ma.MaskedArray) and np.ma.count_masked(value):  # type: ignore[no-untyped-call]
        count = np.ma.count_masked(value)  # type: ignore[no-untyped-call]
        raise ValueError(
            f"a masked array has {count} masked values, which models cannot take: fill them in (array.filled(…)) "
            "or leave their rows out"
        )


def _comes_from(source: object, package: str) -> bool:
    """Return whether its class is of a package that need not be installed."""
    return any(cls.__module__.partition(".")[0] == package for cls in type(source).__mro__)


def _read_memory(source: Any, options: ReadOptions) -> RawSplits:
    if _are_parts(source):
        names = name_parts("dataset", source)
        parts = {part: _read_part(source[name], options) for part, name in names.items()}
        if "train" not in parts:
            raise ValueError(f"dataset has the parts {quote_names(list(source))}: it must have one called 'train'")
        return RawSplits(parts, _class_names(source[names["train"]]))
    _refuse_mixed_names(source)
    if _are_clients(source):
        return _read_clients(source if isinstance(source, Mapping) else dict(enumerate(source)))
    if isinstance(source, Mapping):
        return split_arrays("dataset", {key: as_array(value) for key, value in source.items()}, options)
    if isinstance(source, tuple) and len(source) == PAIR:
        if all(isinstance(part, TorchDataset) for part in source):
            return _read_memory({"train": source[0], "test": source[1]}, options)
        if all(map(_is_pair, source)):
            return RawSplits({"train": _read_pair(*source[0]), "test": _read_pair(*source[1])})
        return RawSplits({"train": _read_pair(*source)})
    if isinstance(source, tuple) and len(source) == FOUR:
        return RawSplits({"train": _read_pair(*source[:PAIR]), "test": _read_pair(*source[PAIR:])})
    if not options.labelled and np.ndim(source):
        return RawSplits({"train": Samples(as_array(source))})
    size = f" of {len(source)}" if isinstance(source, (tuple, list)) else ""
    raise ValueError(
        f"dataset is a {type(source).__name__}{size}: it must be the name of a data set, a path, or {ALLOWED}"
    )


def _read_pair(x: object, y: object = None) -> Samples:
    return Samples(as_array(x), None if y is None else as_array(y))


def _are_parts(source: object) -> bool:
    """Return whether this is a dict of pairs, or torch data sets, by the names of parts, such as `train`."""
    if not isinstance(source, Mapping) or not source:
        return False
    samples = all(_is_pair(part) or isinstance(part, TorchDataset) for part in source.values())
    return samples and all(isinstance(name, str) and part_of(name) is not None for name in source)


def _read_part(part: Any, options: ReadOptions) -> Samples:
    return _read_torch(part, options) if isinstance(part, TorchDataset) else _read_pair(*part)


def _refuse_mixed_names(source: object) -> None:
    """Refuse pairs of which some go by the names of parts: the test samples would be those of a client."""
    if not isinstance(source, Mapping) or not _are_clients(source):
        return
    parts = {part_of(name) for name in source if isinstance(name, str)} - {None}
    if len(parts) > 1:
        names = quote_names(list(source))
        raise ValueError(
            f"dataset has the names {names}: they must be 'train', 'val' and 'test', or those of clients"
        )


def _are_clients(source: object) -> bool:
    """Return whether this holds a pair of samples and labels for each client: a list, or a dict by name."""
    pairs = list(source.values()) if isinstance(source, Mapping) else source
    return isinstance(pairs, list) and bool(pairs) and all(map(_is_pair, pairs))


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == PAIR and np.ndim(value[0]) > 0


def _read_clients(source: Mapping[Any, Sequence[object]]) -> RawSplits:
    pairs = {name: _read_pair(*pair) for name, pair in source.items()}
    empty = [name for name, pair in pairs.items() if not len(pair.x)]
    if empty and len(empty) < len(pairs):
        warnings.warn(f"clients: no sample of client {quote_names(empty)}; dropped as client", stacklevel=2)
        pairs = {name: pair for name, pair in pairs.items() if len(pair.x)}
    first = next(iter(pairs))
    for name, pair in pairs.items():
        _check_client(name, pair, first, pairs[first])
    if len(repeated := {str(name) for name in pairs}) < len(pairs):
        twice = [name for name in repeated if sum(str(key) == name for key in pairs) > 1]
        raise ValueError(f"clients: {quote_names(twice)} names two clients, one by a number and one by text")
    names = np.repeat(np.array(list(pairs)), [len(pair.x) for pair in pairs.values()])
    x, y = (np.concatenate([getattr(pair, part) for pair in pairs.values()]) for part in ("x", "labels"))
    return RawSplits({"train": Samples(x, y, names)})


def _check_client(name: object, pair: Samples, first: object, other: Samples) -> None:
    """Refuse samples of another shape than those of the first client, and labels of another number."""
    if pair.x.shape[1:] != other.x.shape[1:]:
        raise ValueError(
            f"clients: samples of client {name!r} have shape {pair.x.shape[1:]}, those of client {first!r} "
            f"{other.x.shape[1:]}: they must be alike"
        )
    if pair.x.ndim > 2 and (pair.x.dtype == np.uint8) != (other.x.dtype == np.uint8):
        raise ValueError(
            f"clients: samples of client {name!r} are {pair.x.dtype}, those of client {first!r} {other.x.dtype}: "
            "they must be alike"
        )
    if pair.labels.shape != (len(pair.x),):
        raise ValueError(
            f"clients: client {name!r} has {len(pair.x)} samples and labels of shape {pair.labels.shape}: "
            f"it must be ({len(pair.x)},)"
        )


def _read_torch(dataset: "TorchDataset[Any]", options: ReadOptions) -> Samples:
    """Read all samples of a data set of torch, each `(input, label)`; the input alone where no label is needed."""
    name = type(dataset).__name__
    if isinstance(dataset, TensorDataset):
        columns: Sequence[Any] = dataset.tensors
    elif not hasattr(dataset, "__len__"):
        raise ValueError(f"dataset is a {name} without a length: it must be one that can be indexed")
    else:
        rows = [dataset[i] for i in range(len(dataset))]
        if rows and isinstance(rows[0], Mapping):
            raise ValueError(f"dataset is a {name} of dicts: its samples must be pairs (input, label)")
        _warn_of_random(name, dataset, rows)
        pairs = [row if isinstance(row, (tuple, list)) else (row,) for row in rows]
        inputs, *labels = zip(*pairs, strict=True)
        columns = [
            _stack_inputs(inputs),
            *([_unwrap_label(name, label) for label in column] for column in labels[:1]),
        ]
    if len(columns) < PAIR and options.labelled:
        raise ValueError(f"dataset is a {name}: its samples must be pairs (input, label)")
    return _read_pair(*columns[:PAIR])


def _warn_of_random(name: str, dataset: "TorchDataset[Any]", rows: Sequence[Any]) -> None:
    """Warn if a sample that is read again is another one: random transforms are applied once and for all."""
    for i in {0, len(rows) - 1} if rows else ():
        first, again = (
            np.asarray(row[0] if isinstance(row, (tuple, list)) else row) for row in (rows[i], dataset[i])
        )
        if not np.array_equal(first, again):
            text = (
                f"dataset is a {name} whose sample {i} is another one each time: it is read once, and its random"
            )
            warnings.warn(f"{text} transforms stay as they were drawn; augment=True flips and crops", stacklevel=5)
            return


def _stack_inputs(inputs: Sequence[Any]) -> Any:
    if all(isinstance(each, torch.Tensor) for each in inputs):
        kind = functools.reduce(torch.promote_types, {each.dtype for each in inputs})
        return torch.stack([each.to(kind) for each in inputs])
    return np.stack([np.asarray(each) for each in inputs])


def _unwrap_label(name: str, label: Any) -> Any:
    if not isinstance(label, (torch.Tensor, np.ndarray, np.generic)):
        return label
    if np.size(label) != 1:
        raise ValueError(
            f"dataset is a {name} with labels of shape {tuple(label.shape)}: a label must be one number, the "
            "class; of one-hot labels that is their argmax"
        )
    return label.item()


def _class_names(dataset: object) -> tuple[str, ...] | None:
    """Return the names that data sets of torchvision know, by the number of the class."""
    names = getattr(dataset, "classes", None)
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else None
