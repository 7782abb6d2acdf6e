"""Tolerant reading of a run in progress, whose files appear, grow and are replaced. Nothing here imports torch."""

import os
from contextlib import suppress
from pathlib import Path

from fedwcm.experiment.folder import RunFolder, read_round
from fedwcm.experiment.records import PartitionRecord, RoundRecord, Summary
from fedwcm.utils.json_record import RecordError


class MetricsFollower:
    """Follows a metrics file: reads each whole line once, and starts again if the file was replaced."""

    def __init__(self, path: Path) -> None:
        self._path, self._inode, self._offset = path, -1, 0
        self.records: list[RoundRecord] = []
        self.changed = 0.0

    def read(self) -> None:
        """Read what was written since the last call."""
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
            for line in lines.splitlines():
                with suppress(RecordError):
                    self.records.append(read_round(line, str(self._path)))


def summary_so_far(folder: RunFolder) -> Summary | None:
    """The summary; None while there is none, or none that can be read."""
    with suppress(FileNotFoundError, RecordError):
        return folder.summary()
    return None


def partition_so_far(folder: RunFolder) -> PartitionRecord | None:
    """Who holds what, with the names of classes and clients; None while the run has not written it."""
    with suppress(FileNotFoundError, RecordError):
        return folder.partition()
    return None
