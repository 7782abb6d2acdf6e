"""Real arrays out of MATLAB files of version 5 (MATLAB 5 to 7.2), as SVHN is published.

Written out here because scipy's reader is compiled code that a garbled file can crash. Only what is needed is
understood: named numeric arrays, plain or compressed. Everything else is refused.

The format: a header of 128 bytes, then elements, each with a tag of 8 bytes (type, length). An array is an
element of elements: flags, dimensions, name, values. A short element may have its values inside the tag.
"""

import math
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.formats.safety import allowed_bytes, require_bounded

HEADER = 128
VERSION_5, VERSION_7_3 = 0x0100, 0x0200
COMPLEX_FLAG = 0x0800

INT8, INT32, UINT32, MATRIX, COMPRESSED = 1, 5, 6, 14, 15
VALUES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Types in which values are stored."""

CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""Types that arrays have: MATLAB stores a double in fewer bytes where it fits."""


@dataclass(frozen=True)
class Element:
    """A tagged piece of a file."""

    kind: int
    content: memoryview


def read_mat(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the named arrays of the file; one that is not there is an error."""
    data = path.read_bytes()
    order = _byte_order(path, data)
    found: dict[str, NDArray[Any]] = {}
    for matrix in _matrices(path, data, order):
        name, values = _read_matrix(path, matrix, order, names)
        if values is not None:
            found[name] = values
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} lacks the array {', '.join(missing)}")
    return found


def _byte_order(path: Path, data: bytes) -> str:
    mark = data[HEADER - 2 : HEADER]
    if mark not in (b"IM", b"MI"):
        raise ValueError(f"{path} is not a MATLAB file of version 5: its header has no mark of the byte order")
    order = "<" if mark == b"IM" else ">"
    version = int(np.frombuffer(data, f"{order}u2", 1, HEADER - 4)[0])
    if version != VERSION_5:
        hint = " (MATLAB 7.3: save it with -v7)" if version == VERSION_7_3 else ""
        raise ValueError(f"{path} has version {version:#06x}{hint}: only {VERSION_5:#06x} is read")
    return order


def _matrices(path: Path, data: bytes, order: str) -> Iterator[memoryview]:
    """The arrays of the file, those that are compressed unpacked."""
    unpacked = 0
    for element in _elements(path, memoryview(data)[HEADER:], order):
        if element.kind == COMPRESSED:
            content = _unpack(path, element.content, len(data), unpacked)
            unpacked += len(content)
            element = next(_elements(path, memoryview(content), order), Element(0, memoryview(b"")))
        if element.kind != MATRIX:
            raise ValueError(f"{path} holds an element of type {element.kind}, which is not an array")
        yield element.content


def _unpack(path: Path, packed: memoryview, file_size: int, before: int) -> bytes:
    room = allowed_bytes(file_size) - before
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(packed, room + 1)
    require_bounded(str(path), before + len(content), file_size)
    if not unpacker.eof:
        raise ValueError(f"{path} ends inside a compressed array")
    return content


def _elements(path: Path, data: memoryview, order: str) -> Iterator[Element]:
    at = 0
    while at < len(data):
        if at + 8 > len(data):
            raise ValueError(f"{path} ends inside the tag of an element")
        kind, size = (int(word) for word in np.frombuffer(data, f"{order}u4", 2, at))
        short = kind >> 16
        start = at + 4 if short else at + 8
        kind, size = (kind & 0xFFFF, short) if short else (kind, size)
        if (short and size > 4) or start + size > len(data):
            raise ValueError(f"{path}: an element claims {size} bytes, more than there are")
        yield Element(kind, data[start : start + size])
        padded = size if kind == COMPRESSED else -(-size // 8) * 8
        at = at + 8 if short else start + padded


def _read_matrix(
    path: Path, content: memoryview, order: str, wanted: Collection[str]
) -> tuple[str, NDArray[Any] | None]:
    """The name of an array and, if it is wanted, its values."""
    pieces = _elements(path, content, order)
    flags, dimensions, label = (next(pieces, None) for _ in range(3))
    if flags is None or dimensions is None or label is None:
        raise ValueError(f"{path} holds an array without flags, dimensions and name")
    name = bytes(label.content).decode("latin1")
    if label.kind != INT8 or name not in wanted:
        return name, None
    word = int(_numbers(path, flags, UINT32, "u4", order)[0]) if len(flags.content) else 0
    shape = tuple(int(side) for side in _numbers(path, dimensions, INT32, "i4", order))
    values = next(pieces, None)
    if word & 0xFF not in CLASSES or word & COMPLEX_FLAG or values is None or values.kind not in VALUES:
        raise ValueError(f"{path}: {name!r} is not an array of real numbers")
    return name, _shaped(path, name, values, shape, word & 0xFF, order)


def _numbers(path: Path, element: Element, kind: int, dtype: str, order: str) -> NDArray[Any]:
    if element.kind != kind or len(element.content) % 4:
        raise ValueError(f"{path} holds an array whose header is garbled")
    return np.frombuffer(element.content, f"{order}{dtype}")


def _shaped(
    path: Path, name: str, element: Element, shape: tuple[int, ...], matrix_class: int, order: str
) -> NDArray[Any]:
    dtype = np.dtype(f"{order}{VALUES[element.kind]}")
    if min(shape, default=-1) < 0 or math.prod(shape) * dtype.itemsize != len(element.content):
        raise ValueError(
            f"{path}: {name!r} holds {len(element.content)} bytes, which do not fit its shape {shape}"
        )
    values = np.frombuffer(element.content, dtype).reshape(shape, order="F")
    return values.astype(CLASSES[matrix_class], copy=False)
