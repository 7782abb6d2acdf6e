"""Read what clients send without trusting it: every field has a type and a range, and errors say what is wrong."""

import math
import re
from collections.abc import Mapping
from typing import TypeVar

from flwr.app import Message, RecordDict

from fedwcm.core.types import Fault, LeftOut

T = TypeVar("T")

LONGEST = 80
"""Most characters of a wrong value that are quoted: a client decides how long it is."""


class UnusableError(Exception):
    """An answer that cannot be used; the text says why, and the fault what follows from it."""

    def __init__(self, details: str, fault: Fault = Fault.REFUSED) -> None:
        super().__init__(details)
        self.reason = LeftOut(fault, details)


def refuse_error(reply: Message) -> None:
    """Raise an UnusableError with what went wrong at the client, or on the way."""
    if reply.has_error():
        lines = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
        words = re.sub(r"^<class '[\w.]+'>:<'|'>$", "", lines[-1])  # as Flower quotes the app's error
        raise UnusableError(f"error {reply.error.code}: {words[:300]}", Fault.FAILED)
    if not reply.has_content():
        raise UnusableError("its answer is empty")


def read_record(content: RecordDict, name: str) -> dict[str, object]:
    """Return a record of numbers and texts."""
    if name in content.config_records:
        return dict(content.config_records[name])
    if name in content.metric_records:
        return dict(content.metric_records[name])
    raise UnusableError(f"its answer cannot be read: the record {name!r} is missing")


def read_int(values: Mapping[str, object], name: str, least: int, most: int) -> int:
    """Return a whole number from a record."""
    value = _read(values, name, object, "a number")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UnusableError(
            f"its {name!r} is {short_repr(value)}: it must be a whole number from {least} to {most}"
        )
    return value


def read_float(values: Mapping[str, object], name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a number from a record: finite, and in this range."""
    value = _read(values, name, object, "a number")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UnusableError(f"its {name!r} is {short_repr(value)}: it must be a finite number")
    if not least <= value <= most:
        raise UnusableError(f"its {name!r} is {short_repr(value)}: it must be from {least:g} to {most:g}")
    return float(value)


def read_str(values: Mapping[str, object], name: str) -> str:
    """Return text from a record."""
    return _read(values, name, str, "text")


def read_list(values: Mapping[str, object], name: str) -> list[object]:
    """Return a list from a record."""
    return _read(values, name, list, "a list")


def require_names(what: str, got: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    """Refuse a record whose entries are not those that were asked for."""
    if got.keys() != wanted.keys():
        raise UnusableError(f"its {what} has {short_repr(sorted(got))}, not {short_repr(sorted(wanted))}")


def short_repr(value: object) -> str:
    """Return a value as it is quoted in a reason."""
    quoted = repr(value)
    return quoted if len(quoted) <= LONGEST else quoted[:LONGEST] + "…"


def _read(values: Mapping[str, object], name: str, kind: type[T], what: str) -> T:
    if name not in values:
        raise UnusableError(f"its {name!r} is missing")
    value = values[name]
    if not isinstance(value, kind):
        raise UnusableError(f"its {name!r} is {short_repr(value)}: it must be {what}")
    return value
