"""What a tracker is told of a run. It may fail: see `fedwcm.runs.trackers.tracking`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

Record = Mapping[str, object]


@dataclass(frozen=True)
class TrackedRun:
    """A run that starts, or goes on after so many rounds: where its files are, and all its options."""

    folder: Path
    settings: Record
    done: int

    @property
    def name(self) -> str:
        return self.folder.resolve().name


class Tracker(ABC):
    """An adapter to a library that keeps track of experiments.

    It writes into the run's folder unless its library was told otherwise, and goes on with the same entry when the
    run goes on. Libraries are imported in `start`, so that nobody needs those that they do not use.
    """

    name: ClassVar[str]
    package: ClassVar[str | None] = None
    """What must be importable."""

    @abstractmethod
    def start(self, run: TrackedRun) -> None:
        """Called once, before the first round that is played."""

    @abstractmethod
    def log(self, number: int, scalars: Mapping[str, float]) -> None:
        """Called after every evaluated round, with its number."""

    @abstractmethod
    def finish(self, summary: Record) -> None:
        """Called when the run has come to its end, also by diverging; not when it was stopped."""

    @abstractmethod
    def close(self) -> None:
        """Called last, however the run ended."""


def scalars_of(record: Record) -> dict[str, float]:
    """The numbers of a record under flat names: `few`, `per_class_accuracy/3`, `concentration_layers/body.1`.

    Lists are flattened if they are by class; others, such as the clients of a round, mean another thing each time.
    """
    flat: dict[str, float] = {}
    for key, value in record.items():
        nested: Mapping[object, object] = {}
        if isinstance(value, Mapping):
            nested = value
        elif isinstance(value, list) and key.startswith("per_class"):
            nested = dict(enumerate(value))
        elif _is_number(value):
            flat[key] = float(str(value))
        flat |= {f"{key}/{name}": float(str(item)) for name, item in nested.items() if _is_number(item)}
    return flat


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def remembered(path: Path, make: Callable[[], str]) -> tuple[str, bool]:
    """A name that a file keeps, and whether it is new: made and written where there is none yet."""
    if path.exists():
        return path.read_text(encoding="utf-8").strip(), False
    name = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n", encoding="utf-8")
    return name, True
