"""Follow runs through the files that they write, as these appear, grow and are replaced."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedwcm.config.schema import read_toml

Record = dict[str, object]
State = Literal["waiting", "running", "silent", "finished", "diverged"]

RECENT = 10
"""Evaluated rounds that the speed is taken from."""

SILENCE = 60.0
"""Seconds without news after which a run counts as silent; twenty times the usual interval if that is longer."""

DEPTH = 4
"""Folders below the one named in which runs are looked for."""


@dataclass(frozen=True)
class WatchedRun:
    """What is known of a run at a moment."""

    label: str
    folder: Path
    rounds: int | None
    records: Sequence[Record]
    summary: Record | None
    age: float
    """Seconds since the last record was written."""

    @property
    def state(self) -> State:
        if self.summary is not None:
            return "diverged" if self.summary.get("diverged") else "finished"
        if not self.records:
            return "waiting"
        return "silent" if self.age > max(SILENCE, 20 * self._interval) else "running"

    @property
    def over(self) -> bool:
        return self.summary is not None

    @property
    def round(self) -> int:
        return int(str(self.records[-1]["round"])) if self.records else 0

    @property
    def seconds_left(self) -> float | None:
        """At the speed of the last rounds; None while nothing is known, or nothing is left."""
        if self.over or self.rounds is None or not self.records:
            return None
        return max(0.0, self._seconds_per_round * (self.rounds - self.round) - self.age)

    @property
    def _seconds_per_round(self) -> float:
        last, before = self.records[-1], self.records[-1 - RECENT : -1][:1]
        seconds, rounds = _number(last, "seconds"), _number(last, "round")
        if before:
            seconds, rounds = seconds - _number(before[0], "seconds"), rounds - _number(before[0], "round")
        return seconds / max(rounds, 1)

    @property
    def _interval(self) -> float:
        """Seconds between the last two records."""
        rounds = [_number(record, "round") for record in self.records[-2:]]
        return self._seconds_per_round * (rounds[-1] - rounds[0] if len(rounds) > 1 else rounds[0])

    def series(self, key: str) -> list[float]:
        """The numbers of this name, round by round, where there are any."""
        return [float(str(record[key])) for record in self.records if record.get(key) is not None]


def _number(record: Record, key: str) -> float:
    return float(str(record.get(key, 0)))


class Tail:
    """The records of a metrics file: each read once, whole lines only, anew if the file was replaced."""

    def __init__(self, path: Path) -> None:
        self._path, self._inode, self._offset = path, -1, 0
        self.records: list[Record] = []
        self.changed = 0.0

    def read(self) -> None:
        """Take in what was written since the last time."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset, self.records = status.st_ino, 0, []
                file.seek(self._offset)
                lines = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            self._inode, self._offset, self.records = -1, 0, []
            return
        self.changed = status.st_mtime
        if lines:
            self._offset += len(lines) + 1
            self.records += [record for line in lines.splitlines() if (record := _parsed(line)) is not None]


def _parsed(line: bytes) -> Record | None:
    with suppress(ValueError):
        record = json.loads(line)
        return record if isinstance(record, dict) and "round" in record else None
    return None


class Follower:
    """One run's folder, looked at again and again."""

    def __init__(self, label: str, folder: Path) -> None:
        self._label, self._folder = label, folder
        self._tail = Tail(folder / "metrics.jsonl")
        self._rounds: int | None = None

    def look(self) -> WatchedRun:
        """The run as it is now."""
        summary = _json(self._folder / "summary.json")  # before the metrics, which are complete once it is there
        self._tail.read()
        if self._rounds is None:
            with suppress(FileNotFoundError):
                self._rounds = int(str(read_toml(self._folder / "config.toml").get("run.rounds", 0))) or None
        age = max(0.0, time.time() - self._tail.changed)
        return WatchedRun(self._label, self._folder, self._rounds, tuple(self._tail.records), summary, age)


@dataclass(frozen=True)
class Snapshot:
    """All runs at a moment, and the folders in which none has begun."""

    runs: list[WatchedRun]
    missing: list[Path]

    @property
    def over(self) -> bool:
        return not self.missing and all(run.over for run in self.runs)


class Watch:
    """All runs in or below some folders; new ones are noticed as they begin."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._followers: dict[Path, Follower] = {}

    def look(self) -> Snapshot:
        """The runs as they are now, in a lasting order."""
        found = {folder: _runs(folder) for folder in self._folders}
        labels: dict[Path, str] = {}
        for runs in found.values():
            labels |= {path: label for path, label in runs.items() if path not in labels}
        for path, label in labels.items():
            self._followers.setdefault(path, Follower(label, path))
        return Snapshot(
            [self._followers[path].look() for path in labels],
            [folder for folder, runs in found.items() if not runs],
        )


def _runs(folder: Path) -> dict[Path, str]:
    """The runs of a folder: itself, those that a comparison is going to make, or any that are below it."""
    if (folder / "config.toml").exists():
        return {folder: folder.resolve().name}
    found: dict[Path, str] = {}
    for path, folders, files in os.walk(folder):
        here = Path(path)
        if "comparison.json" in files:
            found |= _planned(here)
            folders[:] = [name for name in folders if name != "runs"]
        if "config.toml" in files:
            found[here] = str(here.relative_to(folder))
            folders.clear()
        folders.sort()
        if len(here.relative_to(folder).parts) >= DEPTH:
            folders.clear()
    return found


def _planned(folder: Path) -> dict[Path, str]:
    """The runs of a comparison under its own names for them, with their seeds where these differ."""
    labels = (_json(folder / "comparison.json") or {}).get("labels")
    names: dict[str, str] = labels if isinstance(labels, dict) else {}
    seeds = {name: name.rpartition("-seed")[2] for name in names}
    several = len(set(seeds.values())) > 1
    return {folder / "runs" / n: f"{label}, seed {seeds[n]}" if several else label for n, label in names.items()}


def _json(path: Path) -> Record | None:
    """The object in a file; None if there is none yet."""
    with suppress(FileNotFoundError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else None
    return None
