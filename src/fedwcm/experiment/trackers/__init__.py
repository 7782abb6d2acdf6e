"""Experiment trackers, one file each, registered like methods; entry point group `fedwcm.experiment.trackers`.

A tracker may fail or hang: see `tracking`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedwcm.config.settings import Settings
from fedwcm.core.registry import Registry
from fedwcm.experiment.records import Summary
from fedwcm.utils.json_record import Json, is_number


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
    the run is resumed. Libraries are imported in `start`, so that users need to install only those they use. All
    methods but `view` are called on a thread of the tracker's own.
    """

    name: ClassVar[str]
    package: ClassVar[str | None] = None
    """The package that must be installed."""

    @abstractmethod
    def start(self, run: TrackedRun) -> None:
        """Open the entry; called once, before the first round."""

    @abstractmethod
    def log(self, number: int, scalars: Mapping[str, float]) -> None:
        """Log an evaluated round, by its number."""

    @abstractmethod
    def finish(self, summary: Summary) -> None:
        """Log the summary; called when the run has finished or diverged, not when it was stopped."""

    @abstractmethod
    def close(self) -> None:
        """Close the entry; called last, however the run ended."""

    def view(self, folder: Path) -> str | None:
        """Return how to look at the run in a folder: a command, or an address; None if there is nothing to say."""
        return None


def read_or_make(path: Path, make: Callable[[], str]) -> tuple[str, bool]:
    """Return the name in a file, and whether it is new; if there is no such file, make a name and write it."""
    if path.exists():
        return path.read_text(encoding="utf-8").strip(), False
    name = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n", encoding="utf-8")
    return name, True


def scalars_of(values: Mapping[str, Json], classes: Sequence[str] = ()) -> dict[str, float]:
    """Return the numbers of a record: `few`, `per_class_accuracy/3`, `concentration_layers/body.1`.

    A list is flattened if it is per class; others, such as the clients of a round, mean something else each time.
    Classes whose names are given are called by them.
    """
    flat: dict[str, float] = {}
    for key, value in values.items():
        nested: Mapping[str, Json] = {}
        if isinstance(value, Mapping):
            nested = value
        elif isinstance(value, list | tuple) and key.startswith("per_class"):
            names = classes if len(set(classes)) == len(value) else map(str, range(len(value)))
            nested = dict(zip(names, value, strict=True))
        elif is_number(value):
            flat[key] = float(value)
        flat |= {f"{key}/{name}": float(item) for name, item in nested.items() if is_number(item)}
    return flat


TRACKERS: Registry[Tracker] = Registry("tracker", Tracker, __name__)
