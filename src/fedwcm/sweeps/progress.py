"""Progress of several runs at a time: one display on a terminal, a line per finished run elsewhere."""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.live import MetricsFollower
from fedwcm.utils.durations import duration


class FollowedRun:
    """A run in another process, seen through the metrics that it writes."""

    def __init__(self, title: str, folder: Path, rounds: int) -> None:
        self.title, self.folder, self.rounds = title, RunFolder(folder), rounds
        self._follower = MetricsFollower(self.folder.metrics_file)

    def refresh(self) -> None:
        self._follower.read()

    @property
    def round(self) -> int:
        return self._follower.records[-1].round if self._follower.records else 0

    @property
    def accuracy(self) -> float | None:
        return self._follower.records[-1].test_accuracy if self._follower.records else None


@dataclass
class ComparisonProgress:
    """Shows how far the runs of a comparison are.

    Args:
        total: runs of the comparison.
        done: runs that have ended.
        quiet: show warnings only.
    """

    total: int
    done: int
    quiet: bool = False

    def __post_init__(self) -> None:
        self._began, self._before = time.monotonic(), float(self.done)
        self._console = Console(file=sys.stderr, highlight=False)
        self._warned: set[str] = set()
        self._live: Live | None = None
        if self._console.is_terminal and not self.quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def show(self, running: Sequence[FollowedRun]) -> None:
        """Draw the running runs; only on a terminal."""
        if self._live is None:
            return
        rows = Table.grid(padding=(0, 2))
        for run in running:
            run.refresh()
            accuracy = "" if run.accuracy is None else f"accuracy {run.accuracy:.3f}"
            rows.add_row(Text(run.title), f"round {run.round}/{run.rounds}", accuracy)
        ahead = self.done + sum(run.round / max(1, run.rounds) for run in running)
        self._live.update(
            Group(Text(f"{self.done}/{self.total} runs done{self._left(ahead)}"), rows), refresh=True
        )

    def ended(self, run: FollowedRun) -> None:
        """Tell how a run ended: with which accuracy, or that it diverged."""
        self.done += 1
        if not self.quiet:
            self._print(f"{run.title}: {_outcome(run)} ({self.done}/{self.total})")

    def warn(self, text: str) -> None:
        """Show a warning of a run, once for all seeds: numbers in it may differ between them."""
        key = re.sub(r"(?<![\w=.])\d+(\.\d+)?", "#", text)
        if key not in self._warned:
            self._print(text)
        self._warned.add(key)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _left(self, ahead: float) -> str:
        passed, made = time.monotonic() - self._began, ahead - self._before
        if made <= 0:
            return ""
        return f", {duration(passed / made * (self.total - ahead))} left"

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=not self._console.is_terminal)


def _outcome(run: FollowedRun) -> str:
    summary = run.folder.summary()
    if summary.diverged:
        return f"diverged after round {summary.rounds}: {summary.diverged}"
    return "done" if summary.accuracy is None else f"accuracy {summary.accuracy:.3f}"
