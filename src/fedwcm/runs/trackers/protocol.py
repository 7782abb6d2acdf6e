"""What a tracker is told of a run. It may fail: see `fedwcm.runs.trackers.tracking`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedwcm.config.schema import Settings
from fedwcm.runs.json_record import Json, is_number
from fedwcm.runs.records import Summary


@dataclass(frozen=True)
class TrackedRun:
    """A run that starts, or goes on after so many rounds: where its files are, and all its options."""

    folder: Path
    settings: Settings
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
    def finish(self, summary: Summary) -> None:
        """Called when the run has come to its end, also by diverging; not when it was stopped."""

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
    """A name that a file keeps, and whether it is new: made and written where there is none yet."""
    if path.exists():
        return path.read_text(encoding="utf-8").strip(), False
    name = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n", encoding="utf-8")
    return name, True
