"""The evaluated rounds of a run, written once: a checkpoint says how much of `metrics.jsonl` belongs to it."""

import hashlib
import os
from dataclasses import dataclass

from fedwcm.experiment.files import replace_file
from fedwcm.experiment.folder import RunFolder, metrics_line, read_round
from fedwcm.experiment.records import RoundRecord


class MetricsChangedError(ValueError):
    """The metrics are not those that a checkpoint was saved with."""


@dataclass(frozen=True)
class HistoryMark:
    """A place in `metrics.jsonl`: the bytes before it, and their digest."""

    size: int
    digest: str


class History:
    """The records in memory and, if the run has a folder, the lines that were appended to its metrics."""

    def __init__(self, folder: RunFolder | None = None) -> None:
        self.records: list[RoundRecord] = []
        self._folder = folder
        self._content = b""
        self._set(b"")

    def mark(self) -> HistoryMark:
        """Return the end of what has been recorded."""
        return HistoryMark(self._size, self._digest.hexdigest())

    def append(self, record: RoundRecord) -> None:
        """Record a round."""
        if self._folder is not None:
            self._folder.append_metrics(record)
            line = metrics_line(record).encode()
            self._digest.update(line)
            self._size += len(line)
        self.records.append(record)

    def restore(self, mark: HistoryMark) -> None:
        """Return to the history up to this mark.

        Raises:
            MetricsChangedError: the file does not begin with it.
        """
        assert self._folder is not None, "a run in memory has no checkpoint"
        path = self._folder.metrics_file
        content = path.read_bytes()[: mark.size] if path.exists() else b""
        if (len(content), _hash(content).hexdigest()) != (mark.size, mark.digest):
            raise MetricsChangedError(f"{path} is missing, was cut short or was edited since")
        self.records = [read_round(line, f"{path}, line {n}") for n, line in enumerate(content.splitlines(), 1)]
        self._set(content)

    def restore_records(self, records: list[RoundRecord]) -> None:
        """Take the records of a checkpoint that holds them itself, as those of version 0.1 did."""
        self.records = records
        self._set("".join(map(metrics_line, records)).encode())

    def begin(self) -> None:
        """Make the file hold these records alone: lines after the checkpoint are played again."""
        if self._folder is None:
            return
        path = self._folder.metrics_file
        if not path.exists() or path.read_bytes() != self._content:
            replace_file(path, self._content)
        self._content = b""

    def sync(self) -> None:
        """Have the lines on disk before a checkpoint refers to them."""
        if self._folder is not None:
            with self._folder.metrics_file.open("ab") as file:
                os.fsync(file.fileno())

    def _set(self, content: bytes) -> None:
        self._content, self._size, self._digest = content, len(content), _hash(content)


def _hash(content: bytes) -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)
