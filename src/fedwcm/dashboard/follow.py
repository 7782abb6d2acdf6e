"""Follow runs in progress through the files that they write."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedwcm.experiment.folder import MetricsFollower, RunFolder, find_runs
from fedwcm.experiment.records import PartitionRecord, RoundRecord, Summary
from fedwcm.utils.json_record import RecordError

RunState = Literal["waiting", "running", "silent", "finished", "diverged"]

RECENT = 10
"""Evaluated rounds from which the speed is estimated."""

SILENCE = 60.0
"""Seconds without a record after which a run counts as silent; twenty times the usual interval if longer."""


@dataclass(frozen=True)
class WatchedRun:
    """What is known about a run at one moment."""

    label: str
    folder: Path
    rounds: int | None
    records: Sequence[RoundRecord]
    summary: Summary | None
    age: float
    """Seconds since the last record was written."""
    split: PartitionRecord | None = None
    """The split of the data, once the run has written it."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; none before they are known."""
        return self.split.classes if self.split else ()

    @property
    def trained_by(self) -> list[str]:
        """The names of the clients of the last round; none of clients without names."""
        if self.split is None or self.split.names is None or not self.records:
            return []
        return [self.split.client_name(client) for client in self.records[-1].clients or ()]

    @property
    def state(self) -> RunState:
        if self.summary is not None:
            return "diverged" if self.summary.diverged else "finished"
        if not self.records:
            return "waiting"
        return "silent" if self.age > max(SILENCE, 20 * self._interval) else "running"

    @property
    def ended(self) -> bool:
        return self.summary is not None

    @property
    def round(self) -> int:
        return self.records[-1].round if self.records else 0

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the speed of the last rounds; None before the first record and after the end."""
        if self.ended or self.rounds is None or not self.records:
            return None
        return max(0.0, self._seconds_per_round * (self.rounds - self.round) - self.age)

    @property
    def _seconds_per_round(self) -> float:
        last, before = self.records[-1], self.records[-1 - RECENT : -1][:1]
        if not before:
            return last.seconds / max(last.round, 1)
        return (last.seconds - before[0].seconds) / max(last.round - before[0].round, 1)

    @property
    def _interval(self) -> float:
        """Seconds between the last two records."""
        rounds = [record.round for record in self.records[-2:]]
        return self._seconds_per_round * (rounds[-1] - rounds[0] if len(rounds) > 1 else rounds[0])

    def series(self, key: str) -> list[float]:
        """Return the numbers under this key over the rounds that have one."""
        values = (record.number(key) for record in self.records)
        return [value for value in values if value is not None]


class RunFollower:
    """One run's folder, read again and again."""

    def __init__(self, label: str, path: Path) -> None:
        self._label, self._folder = label, RunFolder(path)
        self._metrics = MetricsFollower(self._folder.metrics_file)
        self._rounds: int | None = None
        self._split: PartitionRecord | None = None

    def look(self) -> WatchedRun:
        """Return the run as it is now."""
        summary = None
        with suppress(RecordError):  # before the metrics, which are complete once it is there
            summary = self._folder.summary()
        self._metrics.read()
        if self._rounds is None:
            with suppress(FileNotFoundError):
                rounds = self._folder.settings().get("run.rounds")
                self._rounds = rounds if isinstance(rounds, int) and rounds > 0 else None
        if self._split is None:
            with suppress(FileNotFoundError, RecordError):
                self._split = self._folder.partition()
        age = max(0.0, time.time() - self._metrics.changed)
        records = tuple(self._metrics.records)
        return WatchedRun(self._label, self._folder.path, self._rounds, records, summary, age, self._split)


@dataclass(frozen=True)
class Snapshot:
    """All runs at one moment, and the folders that hold none yet."""

    runs: list[WatchedRun]
    missing: list[Path]

    @property
    def ended(self) -> bool:
        return not self.missing and all(run.ended for run in self.runs)


class Watch:
    """All runs in or below some folders, including those that begin later."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._followers: dict[Path, RunFollower] = {}

    def look(self) -> Snapshot:
        """Return the runs as they are now, in a stable order."""
        runs_by_folder = {folder: find_runs(folder, tolerant=True) for folder in self._folders}
        labels: dict[Path, str] = {}
        for runs in runs_by_folder.values():
            labels |= {path: label for path, label in runs.items() if path not in labels}
        for path, label in labels.items():
            self._followers.setdefault(path, RunFollower(label, path))
        return Snapshot(
            [self._followers[path].look() for path in labels],
            [folder for folder, runs in runs_by_folder.items() if not runs],
        )
