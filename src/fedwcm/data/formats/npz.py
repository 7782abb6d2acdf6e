"""NumPy's `.npz` files."""

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedwcm.data.formats.safety import require_bounded
from fedwcm.data.hint import did_you_mean
from fedwcm.data.samples import Parts, Samples

SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
WHOLE_KEYS = ("x", "y")
KINDS = "biufU"


def read_npz(path: Path) -> Parts:
    """Read `x_train`, `y_train`, `x_test`, `y_test`, or `x` and `y` from which a test part is drawn.

    Optional: `classes` (names; integer labels are then positions in it), and who holds each training
    sample as `client_train` (beside `x_train`) or `client` (beside `x`).
    """
    arrays = read_arrays(path)
    is_split = any(key in arrays for key in SPLIT_KEYS)
    required, client = (SPLIT_KEYS, "client_train") if is_split else (WHOLE_KEYS, "client")
    _check_keys(path, arrays, required, (client, "classes"))
    names = arrays.get("classes")
    classes = None if names is None else tuple(str(name) for name in np.atleast_1d(names))
    if is_split:
        train = Samples(arrays["x_train"], arrays["y_train"], arrays.get(client))
        return Parts(train, Samples(arrays["x_test"], arrays["y_test"]), classes)
    return Parts(Samples(arrays["x"], arrays["y"], arrays.get(client)), classes=classes)


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
        shape, dtype = _read_header(where, content)
        size, claimed = member.file_size - content.tell(), math.prod(shape) * dtype.itemsize
    if dtype.kind not in KINDS:
        raise ValueError(
            f"{where} is of type {dtype!s:.40}: arrays hold numbers or text (arrays of Python objects are not read)"
        )
    if min(shape, default=0) < 0 or claimed != size:
        raise ValueError(f"{where} holds {size} bytes, which do not fit its shape {shape!s:.100} of {dtype!s:.40}")
    with archive.open(member) as content:
        values: NDArray[Any] = npy.read_array(content, allow_pickle=False)
    return values


def _read_header(where: str, content: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = npy.read_magic(content)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(content)
    except zipfile.BadZipFile:
        raise
    except Exception as error:  # NumPy parses Python's syntax here, which can fail in many ways
        raise ValueError(f"{where} has no readable header: {error!s:.200}") from error
    return shape, dtype


def _check_keys(
    path: Path, arrays: dict[str, NDArray[Any]], required: tuple[str, ...], optional: tuple[str, ...]
) -> None:
    missing = [key for key in required if key not in arrays]
    if missing:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}: it must hold {', '.join(SPLIT_KEYS)}, "
            f"or {' and '.join(WHOLE_KEYS)}; it holds {', '.join(arrays) or 'nothing'}"
        )
    known = required + optional
    for key in arrays:
        if key not in known:
            hint = did_you_mean(key, known)
            raise ValueError(f"{path}: unknown array {key!r}{hint}; known are {', '.join(known)}")
