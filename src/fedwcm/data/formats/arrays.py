"""Arrays in NumPy's files: `.npz`, or a folder of `.npy` files whose samples stay on disk."""

import math
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedwcm.core.checks import did_you_mean
from fedwcm.data.dataset import quote_names
from fedwcm.data.formats.safety import require_bounded
from fedwcm.data.raw import PARTS, RawSplits, Samples, part_of
from fedwcm.data.read_options import ReadOptions

PART_KEYS = ("x_train", "y_train", "x_val", "y_val", "x_test", "y_test")
WHOLE_KEYS = ("x", "y")
CLIENT_KEYS = tuple(f"{role}_{part}" for role in ("client", "group") for part in PARTS)
KINDS = "biufU"
MAX_CODE_POINT = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)

SUFFIX = ".npy"


def read_npz(path: Path, options: ReadOptions = ReadOptions()) -> RawSplits:  # noqa: B008 (frozen)
    """Read `x_train`, `y_train` and, where there are such parts, `x_val`, `y_val`, `x_test`, `y_test`; or `x`,
    `y`.

    Optional: `classes` (names; integer labels are then positions in it), and who holds each training
    sample as `client_train` (beside `x_train`, with `client_val` and `client_test` for the other samples) or
    `client` (beside `x`); in the same way `group`, for what must stay on one side of every
    split. Capitals do not matter, and a part goes by any of its names:
    `X_validation` is `x_val`.
    """
    return replace(split_arrays(str(path), read_arrays(path), options), owned=True)


def split_arrays(where: str, arrays: Mapping[str, NDArray[Any]], options: ReadOptions) -> RawSplits:
    """Return the parts that these arrays make; see `read_npz`."""
    arrays = _rename_arrays(where, arrays)
    is_split = any(key in arrays for key in PART_KEYS)
    known = (*PART_KEYS, *CLIENT_KEYS, "classes") if is_split else (*WHOLE_KEYS, "client", "group", "classes")
    _refuse_unknown(where, arrays, known)
    names = arrays.get("classes")
    classes = None if names is None else tuple(str(name) for name in np.atleast_1d(names))
    if not is_split:
        return RawSplits({"train": _take_samples(where, arrays, "", options)}, classes)
    parts = {
        part: _take_samples(where, arrays, f"_{part}", options)
        for part in PARTS
        if f"x_{part}" in arrays or f"y_{part}" in arrays
    }
    return RawSplits(parts, classes)


def _rename_arrays(where: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays by the names that they go by here; two that have the same are an error."""
    originals: dict[str, str] = {}
    for name in arrays:
        kind, _, ending = str(name).lower().partition("_")
        part = part_of(ending)
        key = f"{kind}_{part}" if part else str(name).lower()
        if key in originals:
            raise ValueError(f"{where} has two arrays for {key!r}, {originals[key]!r} and {name!r}: leave one")
        originals[key] = name
    return {key: arrays[name] for key, name in originals.items()}


def _take_samples(where: str, arrays: Mapping[str, NDArray[Any]], part: str, options: ReadOptions) -> Samples:
    needed = (f"x{part}", f"y{part}") if options.labelled else (f"x{part}",)
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise ValueError(
            f"{where} lacks {', '.join(missing)}: it must hold {' and '.join(WHOLE_KEYS)}, or x_train and y_train "
            f"and, if there are such parts, {', '.join(PART_KEYS[2:])}; "
            f"it holds {quote_names(arrays) or 'nothing'}"
        )
    y, client, group = (arrays.get(f"{role}{part}") for role in ("y", "client", "group"))
    return Samples(arrays[f"x{part}"], y if options.labelled else None, client, group=group)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return every array of the file. What a header claims is checked before memory is taken for it."""
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz file")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        require_bounded(str(path), sum(member.file_size for member in members), path.stat().st_size)
        return {_key(member): _read_array(path, archive, member) for member in members}


def _key(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _read_array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    where = f"{path}: array {_key(member)!r}"
    with archive.open(member) as content:
        check_header(where, content, member.file_size)
    with archive.open(member) as content:
        return check_text(where, npy.read_array(content, allow_pickle=False))


def check_header(where: str, content: Any, total: int) -> None:
    """Refuse an array in a stream of `total` bytes that is not of numbers or text, or not of the claimed size."""
    try:
        version = npy.read_magic(content)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(content)
    except zipfile.BadZipFile:
        raise
    except Exception as error:  # NumPy parses Python's syntax here, which can fail in many ways
        raise ValueError(f"{where} has no readable header: {error!s:.200}") from error
    size, claimed = total - content.tell(), math.prod(shape) * dtype.itemsize
    if dtype.kind not in KINDS:
        raise ValueError(
            f"{where} is of type {dtype!s:.40}: arrays hold numbers or text "
            "(arrays of Python objects are not read)"
        )
    if min(shape, default=0) < 0 or claimed != size:
        raise ValueError(f"{where} holds {size} bytes, which do not fit its shape {shape!s:.100} of {dtype!s:.40}")


def _refuse_unknown(where: str, arrays: Mapping[str, NDArray[Any]], known: tuple[str, ...]) -> None:
    for key in arrays:
        if key not in known:
            hint = did_you_mean(key, known)
            raise ValueError(f"{where}: unknown array {key!r:.100}{hint}; known are {', '.join(known)}")


def check_text(where: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the array; refuse numbers that are no characters: NumPy takes them, and fails where text is used."""
    if values.dtype.kind != "U" or not values.size or not values.dtype.itemsize:
        return values
    codes = np.ascontiguousarray(values.reshape(-1)).view(
        np.uint32 if values.dtype.isnative else values.dtype.byteorder + "u4"
    )
    if (codes > MAX_CODE_POINT).any() or ((codes >= SURROGATES[0]) & (codes <= SURROGATES[1])).any():
        raise ValueError(f"{where} holds text with characters that do not exist")
    return values


def is_npy_folder(path: Path) -> bool:
    """Return whether a folder holds `.npy` files."""
    return path.is_dir() and any(path.glob(f"*{SUFFIX}"))


def read_npy_folder(path: Path, options: ReadOptions) -> RawSplits:
    """Read a folder with a file for each array of a `.npz` file: `x_train.npy`, `y_train.npy`, `x_test.npy`, …

    Inputs are mapped.
    """
    names = {file.stem: file for file in sorted(path.glob(f"*{SUFFIX}"))}
    arrays = {name: _read(file, name.lower().startswith("x")) for name, file in names.items()}
    return split_arrays(str(path), arrays, options)


def _read(file: Path, mapped: bool) -> NDArray[Any]:
    with file.open("rb") as content:
        check_header(str(file), content, file.stat().st_size)
    # Not copy on write ("c"): the system refuses such a mapping of a file that is larger than its memory.
    values: NDArray[Any] = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    return check_text(str(file), np.asarray(values))
