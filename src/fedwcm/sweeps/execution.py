"""The runs of a comparison: one after the other, several at a time in processes of their own, or on a cluster."""

import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedwcm.engine.backends.errors import WorkerDiedError, WorkerError
from fedwcm.engine.backends.plan import can_fork
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment import interrupts
from fedwcm.experiment.build import RunData
from fedwcm.experiment.folder import MetricsFollower, RunFolder
from fedwcm.experiment.lock import wait_until_free
from fedwcm.experiment.progress import Progress
from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.run import Run
from fedwcm.experiment.start import start
from fedwcm.sweeps.plan import PlannedRun, SharedData, group_by_data, is_done
from fedwcm.utils.text import duration

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext


class FollowedRun:
    """A run in another process, seen through the metrics that it writes."""

    def __init__(self, planned: PlannedRun) -> None:
        self.planned, self.title, self.rounds = planned, planned.title, planned.config.run.rounds
        self.folder = RunFolder(planned.folder)
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
            Group(Text(f"{self.done}/{self.total} runs done{self._remaining(ahead)}"), rows), refresh=True
        )

    def report_end(self, run: FollowedRun) -> None:
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

    def _remaining(self, ahead: float) -> str:
        passed, progress = time.monotonic() - self._began, ahead - self._before
        if progress <= 0:
            return ""
        return f", {duration(passed / progress * (self.total - ahead))} left"

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=not self._console.is_terminal)


def _outcome(run: FollowedRun) -> str:
    summary = run.folder.summary()
    if summary.diverged:
        return f"diverged after round {summary.rounds}: {summary.diverged}"
    return "done" if summary.accuracy is None else f"accuracy {summary.accuracy:.3f}"


FAILED = 2
"""Exit status of a child run that has already reported its error."""

REFRESH = 0.5
"""Seconds between two checks on the running runs."""


def run_all(
    planned_runs: Sequence[PlannedRun],
    jobs: int,
    progress: Callable[[], Progress] | None,
    round_size: float = math.inf,
    data: SharedData | None = None,
) -> list[Run]:
    """Run what is not finished yet: one after the other here, each in a process of its own, or on a cluster.

    Args:
        planned_runs: all runs, finished ones included.
        jobs: runs at a time.
        progress: makes what shows the rounds of each run; None shows nothing.
        round_size: clients times parameters of the largest round; one that is not known counts as large.
        data: samples that are there already.

    Returns:
        All runs, in the order in which they were planned.
    """
    waiting = [planned for planned in planned_runs if not is_done(planned)]
    data, ended = data or SharedData(), dict[Path, Run]()
    if waiting and all(uses_cluster(planned) for planned in waiting):
        ended = _run_with_cluster(planned_runs, waiting, progress, round_size)
    elif jobs == 1:
        ended = _run_in_turn(planned_runs, waiting, progress, data)
    else:
        run_apart(planned_runs, waiting, jobs, data, quiet=progress is None)
    return [ended.get(planned.folder) or Run(RunFolder(planned.folder)) for planned in planned_runs]


def uses_cluster(planned: PlannedRun) -> bool:
    """Return whether the run is for a cluster."""
    return planned.config.run.backend == "ray"


def _run_with_cluster(
    planned_runs: Sequence[PlannedRun],
    waiting: Sequence[PlannedRun],
    progress: Callable[[], Progress] | None,
    round_size: float,
) -> dict[Path, Run]:
    """Spread whole runs, or the clients of each, over one cluster, which stays up until all runs are done."""
    from fedwcm.engine.backends.on_ray.cluster import Cluster
    from fedwcm.sweeps.runs_on_cluster import run_on_cluster, spreads_runs

    options = waiting[0].config.run
    with Cluster(options.ray_address, options.workers):
        if spreads_runs(options, len(waiting), round_size):
            run_on_cluster(planned_runs, waiting, quiet=progress is None)
            return {}
        return _run_in_turn(planned_runs, waiting, progress, SharedData())


def _run_in_turn(
    planned_runs: Sequence[PlannedRun],
    waiting: Sequence[PlannedRun],
    progress: Callable[[], Progress] | None,
    data: SharedData,
) -> dict[Path, Run]:
    """Run those with the same samples one after the other, beginning with those whose samples are there."""
    ended: dict[Path, Run] = {}
    for planned in group_by_data(sorted(waiting, key=lambda planned: not data.holds(planned))):
        title = f"{planned.label} [{planned_runs.index(planned) + 1}/{len(planned_runs)}]"
        shown = None if progress is None else _Titled(progress(), title)
        run = run_planned(planned, shown, data.of(planned))
        if run is not None:
            ended[planned.folder] = run.copy_with(module=None)  # many models may need much room
    return ended


def run_apart(
    planned_runs: Sequence[PlannedRun],
    waiting: Sequence[PlannedRun],
    jobs: int,
    data: SharedData,
    *,
    quiet: bool,
) -> None:
    """Run each in its own single-threaded process, at most `jobs` at a time."""
    context = process_context()
    if context.get_start_method() != "fork" and any(planned.config.holds_objects for planned in planned_runs):
        raise ValueError(
            f"jobs = {jobs} is not allowed: objects cannot be handed to new processes here; use jobs=1"
        )
    left, running = list(waiting), list[_ChildRun]()
    display = ComparisonProgress(len(planned_runs), len(planned_runs) - len(waiting), quiet)
    try:
        while left or running:
            while left and len(running) < jobs:
                samples = data.get(left[0]) if context.get_start_method() == "fork" else None
                running.append(_ChildRun(left.pop(0), context, samples, jobs))
            wait([run.process.sentinel for run in running], timeout=REFRESH)
            for run in running:
                run.pass_on_warnings(display)
            display.show([run.followed for run in running])
            for run in [run for run in running if not run.process.is_alive()]:
                running.remove(run)
                run.require_finished(display)
                display.report_end(run.followed)
    finally:
        display.close()
        for run in running:
            run.process.terminate()  # like Ctrl-C: the run saves its progress
        for run in running:
            run.process.join()


class _ChildRun:
    """A run in a process of its own, which sends its warnings here."""

    def __init__(
        self, planned: PlannedRun, context: "ForkContext | SpawnContext", data: RunData | None, jobs: int
    ) -> None:
        self.followed = FollowedRun(planned)
        self._warnings, sender = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(target=_run_alone, args=(planned, sender, data, jobs))
        self.process.start()
        sender.close()  # or the end of the process would not show as the end of the pipe

    def pass_on_warnings(self, display: ComparisonProgress) -> None:
        with suppress(EOFError, OSError):
            while self._warnings.poll():
                display.warn(str(self._warnings.recv()))

    def require_finished(self, display: ComparisonProgress) -> None:
        self.pass_on_warnings(display)
        run = self.followed
        if not run.folder.finished:
            status = self.process.exitcode
            how = "failed; see the error above" if status == FAILED else str(WorkerDiedError(status))
            raise WorkerError(f"{run.title}: the run in {run.folder.path} {how}")


def process_context() -> "ForkContext | SpawnContext":
    """Fork if possible: importing torch takes longer than many a small run.

    A forked process cannot use CUDA if this process has used it before.
    """
    if can_fork() and not torch.cuda.is_initialized():
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


def _run_alone(planned: PlannedRun, parent: Connection, data: RunData | None, jobs: int) -> None:
    """Run in this child process, which ends quietly when it is stopped, and stops when its parent is gone."""
    torch.set_num_threads(1)
    warnings.showwarning = lambda message, *_, **__: _send(parent, f"warning: {message}")
    with interrupts.handled():
        threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()
        try:
            wait_until_free(planned.folder)
            alone = replace(planned.config, run=replace(planned.config.run, workers=1))
            run_planned(replace(planned, config=alone), data=data, jobs=jobs)
        except KeyboardInterrupt:
            sys.exit(interrupts.exit_status())
        except (ValueError, OSError) as error:
            _send(parent, f"error: {planned.title}: {error}")
            sys.exit(FAILED)


def _send(parent: Connection, text: str) -> None:
    with suppress(OSError):  # the parent is gone: nobody listens
        parent.send(text)


def _stop_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)


def run_planned(
    planned: PlannedRun, progress: Progress | None = None, data: RunData | None = None, jobs: int = 1
) -> Run | None:
    """Start the run, or resume it from its folder; None if it diverges: its summary says so."""
    folder = RunFolder(planned.folder)
    with suppress(DivergedError):
        return start(planned.config, folder, resume=True, progress=progress, data=data, jobs=jobs)
    return None


class _Titled:
    """Progress under the run's label in place of the method's name."""

    def __init__(self, inner: Progress, title: str) -> None:
        self._inner, self._title = inner, title

    def start(self, title: str, rounds: int, done: int) -> None:
        self._inner.start(self._title, rounds, done)

    def round(self, number: int, record: RoundRecord) -> None:
        self._inner.round(number, record)

    def close(self) -> None:
        self._inner.close()
