"""The data in a pickle, read without running it.

A pickle is a program that may call anything. Here its instructions are only listed (`pickletools`), and those few
that build plain data are followed: text, integers, lists, tuples, dictionaries with text as keys, and NumPy
arrays of unsigned bytes, which are recognised by name and made anew. Every other instruction or name is refused.
"""

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BYTE_CODE = "u1"


@dataclass(frozen=True)
class _Name:
    """Something that the pickle asks for by name."""

    name: str


@dataclass(eq=False)
class ByteArray:
    """An array of unsigned bytes, empty until its state is read."""

    values: NDArray[np.uint8]


class _ByteType:
    """The type of such an array."""


KNOWN = {
    "numpy.core.multiarray _reconstruct": _Name("array"),
    "numpy._core.multiarray _reconstruct": _Name("array"),
    "numpy ndarray": _Name("ndarray"),
    "numpy dtype": _Name("dtype"),
    "_codecs encode": _Name("encode"),
}
CONSTANTS: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
LITERALS = frozenset(
    {
        "BININT",
        "BININT1",
        "BININT2",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINUNICODE",
        "BINBYTES",
        "SHORT_BINBYTES",
    }
)
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickled(data: bytes) -> object:
    """Return what the pickle holds, or raise ValueError for whatever is not plain data."""
    machine = _Machine(len(data))
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                break
            machine.step(opcode.name, argument)
        return machine.pop()
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the pickle is garbled: {error!r}") from error


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self, size: int) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._room = size  # for bytes made from text: each once, or a short pickle could ask for any number

    def pop(self) -> Any:
        return self._stack.pop()

    def step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in LITERALS:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name]())
        elif name == "PROTO":
            return
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in ("APPEND", "APPENDS"):
            self._append([self.pop()] if name == "APPEND" else self._above_mark())
        elif name in ("SETITEM", "SETITEMS"):
            self._set_items([self.pop(), self.pop()][::-1] if name == "SETITEM" else self._above_mark())
        elif name == "TUPLE" or name in TUPLES:
            stack.append(tuple(self._above_mark() if name == "TUPLE" else self._last(TUPLES[name])))
        elif name == "GLOBAL":
            stack.append(_known(argument))
        elif name == "REDUCE":
            arguments = self.pop()
            stack.append(self._made(self.pop(), arguments))
        elif name == "BUILD":
            self._build(self.pop(), stack[-1])
        else:
            raise ValueError(f"refused: the pickle has the instruction {name}, which plain data does not need")

    def _above_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _last(self, count: int) -> list[Any]:
        items = self._stack[-count:]
        if len(items) < count:
            raise IndexError("a tuple of more than there is")
        del self._stack[-count:]
        return items

    def _append(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError("items for what is not a list")
        self._stack[-1].extend(items)

    def _set_items(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        if not isinstance(self._stack[-1], dict) or not all(isinstance(key, str) for key in keys):
            raise TypeError("items for what is not a dictionary, or keys that are not text")
        self._stack[-1].update(zip(keys, values, strict=True))

    def _made(self, function: Any, arguments: Any) -> object:
        """What a call would give, for the three calls in the pickle of a byte array."""
        if function == KNOWN["numpy._core.multiarray _reconstruct"]:
            return ByteArray(np.empty(0, np.uint8))
        if function == KNOWN["numpy dtype"]:
            if arguments[0] != BYTE_CODE:
                raise ValueError(
                    f"refused: the pickle holds an array of type {arguments[0]!r:.20}, not of unsigned bytes"
                )
            return _ByteType()
        if function == KNOWN["_codecs encode"] and isinstance(arguments[0], str):
            self._room -= len(arguments[0])
            if self._room < 0:
                raise ValueError("refused: the pickle makes more bytes than it holds")
            return arguments[0].encode("latin1")
        raise TypeError("a call of what is not a function")

    def _build(self, state: Any, target: Any) -> None:
        if isinstance(target, ByteArray):
            target.values = _bytes_of_state(state)
        elif not isinstance(target, _ByteType):  # its state is the byte order, which means nothing for bytes
            raise TypeError("a state for what is not an array")


def _known(name: str) -> _Name:
    if name not in KNOWN:
        raise ValueError(f"refused: the pickle asks for {name.replace(' ', '.')!s:.100}")
    return KNOWN[name]


def _bytes_of_state(state: Any) -> NDArray[np.uint8]:
    _, shape, dtype, column_major, raw = state
    content = raw.encode("latin1") if isinstance(raw, str) else raw
    sides = isinstance(shape, tuple) and all(isinstance(side, int) and side >= 0 for side in shape)
    if not (sides and isinstance(dtype, _ByteType) and isinstance(content, bytes)):
        raise TypeError("an array whose state is garbled")
    if math.prod(shape) != len(content):
        raise ValueError(f"the pickle holds {len(content)} bytes for an array of shape {shape!s:.100}")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if column_major else "C")
