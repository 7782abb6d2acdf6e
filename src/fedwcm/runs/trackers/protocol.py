"""The interface of a tracker. A tracker may fail: see `fedwcm.runs.trackers.tracking`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedwcm.config.schema import Settings
from fedwcm.core.json_record import Json, is_number
from fedwcm.runs.records import Summary


@dataclass(frozen=True)
class TrackedRun:
    """A run that starts, or resumes after `done` rounds: its folder and all its options."""

    folder: Path
    settings: Settings
    done: int

    @property
    def name(self) -> str:
        return self.folder.resolve().name


class Tracker(ABC):
    """An adapter to an experiment-tracking library.

    It writes into the run's folder unless the library is configured otherwise, and continues the same entry when
    the run is resumed. Libraries are imported in `start`, so that users need to install only those they use.
    """

    name: ClassVar[str]
    package: ClassVar[str | None] = None
    """The package that must be installed."""

    @abstractmethod
    def start(self, run: TrackedRun) -> None:
        """Called once, before the first round."""

    @abstractmethod
    def log(self, number: int, scalars: Mapping[str, float]) -> None:
        """Called after every evaluated round, with its number."""

    @abstractmethod
    def finish(self, summary: Summary) -> None:
        """Called when the run has finished or diverged, not when it was stopped."""

    @abstractmethod
    def close(self) -> None:
        """Called last, however the run ended."""


def scalars_of(values: Mapping[str, Json]) -> dict[str, float]:
    """The numbers of a record under flat names: `few`, `per_class_accuracy/3`, `concentration_layers/body.1`.

    A list is flattened if it is per class; others, such as the clients of a round, mean something else each time.
    """
    flat: dict[str, float] = {}
    for key, value in values.items():
        nested: Mapping[str, Json] = {}
        if isinstance(value, Mapping):
            nested = value
        elif isinstance(value, list | tuple) and key.startswith("per_class"):
            nested = {str(number): item for number, item in enumerate(value)}
        elif is_number(value):
            flat[key] = float(value)
        flat |= {f"{key}/{name}": float(item) for name, item in nested.items() if is_number(item)}
    return flat


def remembered(path: Path, make: Callable[[], str]) -> tuple[str, bool]:
    """The name in a file, and whether it is new; if there is no such file, make a name and write it."""
    if path.exists():
        return path.read_text(encoding="utf-8").strip(), False
    name = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n", encoding="utf-8")
    return name, True
