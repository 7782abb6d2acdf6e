"""Compare methods: every method × seed × grid point as a run of its own, then one table and one report."""

import itertools
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedwcm.api import run
from fedwcm.config.flags import settings_from
from fedwcm.config.schema import (
    INCIDENTAL,
    Config,
    Settings,
    from_settings,
    method_settings,
    overlay,
    to_settings,
)
from fedwcm.core.checks import require
from fedwcm.engine.backends.errors import WorkerDiedError, WorkerError
from fedwcm.engine.backends.plan import can_fork
from fedwcm.engine.rounds import DivergedError
from fedwcm.reports.table import Row, csv_table, markdown_table, rows_of
from fedwcm.reports.write import report_or_warn
from fedwcm.runs import interrupts
from fedwcm.runs.files import replacing
from fedwcm.runs.folder import Record, RunFolder
from fedwcm.runs.lock import locked, wait_until_free
from fedwcm.runs.progress import Progress, Silent
from fedwcm.runs.trackers.tracking import check_trackers

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

FAILED = 2
"""Exit status of a run in a process of its own that has said why it failed."""

PATIENCE = 30.0
"""Seconds in which a run of a comparison that was killed saves what it did, and ends."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    seed: int
    config: Config
    folder: Path


@dataclass(frozen=True, eq=False)
class Comparison:
    """All runs of a comparison, by label, and the page about them; None if none was asked for."""

    runs: dict[str, list[RunFolder]]
    rows: list[Row]
    report: Path | None

    @property
    def table(self) -> str:
        """Mean ± standard deviation over the seeds, as Markdown."""
        return markdown_table(self.rows)


def compare(
    methods: Sequence[str],
    seeds: Sequence[int],
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[object]] | None = None,
    jobs: int = 1,
    report: bool = True,
    config: str | Path | Config | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Callable[[], Progress] = Silent,
    trust: bool = False,
    **flags: object,
) -> Comparison:
    """Run every method with every seed, and tabulate. Runs that are in `out` already are not repeated.

    Args:
        methods: methods or recipes, each with options in brackets if need be.
        seeds: one run of each method for each.
        out: folder for the runs, the table and the report.
        grid: values for dotted options, such as `{"local.lr": [0.03, 0.1]}`: every combination is run.
        jobs: runs at a time, each in a process of its own.
        report: write `report.html`, one for all runs, into `out`.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"method.q": "off"}`.
        progress: makes what is told of each run's rounds.
        trust: as in `fedwcm.run`.
        flags: the common options, as in `fedwcm.run`.
    """
    require(jobs >= 1, "jobs", jobs, "at least 1")
    base = settings_from(None, config, settings, flags, trust)
    cells = plan(methods, seeds, grid or {}, base, Path(out))
    for cell in cells:
        check_trackers(cell.config.run.track, cell.folder)
    with locked(Path(out)):
        _write_index(cells, Path(out))
        if jobs == 1:
            for number, cell in enumerate(cells, 1):
                _run_here(cell, f"{number}/{len(cells)}", progress())
        else:
            _run_apart(cells, jobs, sys.stderr.write if progress is not Silent else lambda _: 0)
        return collect(cells, Path(out), report)


def plan(
    methods: Sequence[str],
    seeds: Sequence[int],
    grid: Mapping[str, Sequence[object]],
    base: Settings,
    out: Path,
) -> list[Cell]:
    """The runs of a comparison. What is said of a method in its brackets wins over the grid and the rest."""
    cells = []
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for method, point, seed in itertools.product(methods, points, seeds):
        suffix = ", ".join(f"{key}={value}" for key, value in point.items())
        label = f"{method} ({suffix})" if suffix else method
        settings = overlay(overlay(base, point), method_settings(method))
        config = from_settings(overlay(settings, {"run.seed": seed}))
        cells.append(Cell(label, seed, config, out / "runs" / f"{_slug(label)}-seed{seed}"))
    return cells


def collect(cells: Sequence[Cell], out: Path, report: bool) -> Comparison:
    """Tabulate the finished runs, and write the report."""
    runs: dict[str, list[RunFolder]] = {}
    for cell in cells:
        runs.setdefault(cell.label, []).append(RunFolder(cell.folder))
    rows = rows_of({label: [folder.summary() for folder in folders] for label, folders in runs.items()})
    _write(out / "table.csv", csv_table(rows))
    _write(out / "report.md", f"# Comparison\n\n{markdown_table(rows)}\n")
    return Comparison(runs, rows, report_or_warn(out) if report else None)


def _write_index(cells: Sequence[Cell], out: Path) -> None:
    """Write down which runs there will be, before the first, for those who watch."""
    labels = {cell.folder.name: cell.label for cell in cells}
    _write(out / "comparison.json", json.dumps({"labels": labels}, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def _run_here(cell: Cell, position: str, progress: Progress) -> None:
    if _done(cell):
        return
    _play(cell, cell.config, _Titled(progress, f"{cell.label} [{position}]"))


def _run_apart(cells: Sequence[Cell], jobs: int, say: Callable[[str], object]) -> None:
    """Each run in a process of its own with one thread, at most so many at a time."""
    context = _context()
    waiting = [cell for cell in cells if not _done(cell)]
    running: dict[BaseProcess, Cell] = {}
    done = len(cells) - len(waiting)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                started = context.Process(target=_run_alone, args=(cell,))
                started.start()
                running[started] = cell
            wait([process.sentinel for process in running])
            for ended in [process for process in running if not process.is_alive()]:
                cell = running.pop(ended)
                done += 1
                if not RunFolder(cell.folder).finished:
                    raise WorkerError(f"{cell.label}, seed {cell.seed}: the run in {cell.folder} {_end(ended)}")
                say(f"{cell.label}, seed {cell.seed}: done ({done}/{len(cells)})\n")
    finally:
        for process in running:
            process.terminate()  # as Ctrl-C: it saves what was done
        for process in running:
            process.join()


def _context() -> "ForkContext | SpawnContext":
    """A forked process has torch already, which takes longer to import than many a small run.

    But it cannot use CUDA if this process did before.
    """
    if can_fork() and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


def _end(process: BaseProcess) -> str:
    return str(WorkerDiedError(process.exitcode)) if process.exitcode != FAILED else "failed, as said above"


def _run_alone(cell: Cell) -> None:
    """One run in this process, which ends quietly when it is stopped, and stops when its parent is gone."""
    torch.set_num_threads(1)
    with interrupts.handled():
        threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()
        try:
            wait_until_free(cell.folder, PATIENCE)
            _play(cell, replace(cell.config, run=replace(cell.config.run, workers=1)), Silent())
        except KeyboardInterrupt:
            sys.exit(interrupts.exit_status())
        except (ValueError, OSError) as error:
            print(f"error: {cell.label}, seed {cell.seed}: {error}", file=sys.stderr)
            sys.exit(FAILED)


def _stop_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)


def _play(cell: Cell, config: Config, progress: Progress) -> None:
    with suppress(DivergedError):  # its summary says so, and the table shows it
        run(config=config, out=cell.folder, resume=True, report=False, progress=progress)


def _done(cell: Cell) -> bool:
    """Whether the run is in its folder, finished; one with another configuration is refused when it is run."""
    return RunFolder(cell.folder).finished and not _stale(cell)


def _stale(cell: Cell) -> bool:
    """Whether what was asked for differs from what the folder holds; the folder's options are all resolved."""
    held, asked = _settings_of(RunFolder(cell.folder).config()), _settings_of(cell.config)
    return any(key in held and held[key] != value for key, value in asked.items() if value != "auto")


def _settings_of(config: Config) -> Settings:
    return {key: value for key, value in to_settings(config).items() if key not in INCIDENTAL}


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", label).strip("-")


class _Titled:
    """Progress under the run's label in place of the method's name."""

    def __init__(self, inner: Progress, title: str) -> None:
        self._inner, self._title = inner, title

    def start(self, title: str, rounds: int, done: int) -> None:
        self._inner.start(self._title, rounds, done)

    def round(self, number: int, record: Record) -> None:
        self._inner.round(number, record)

    def close(self) -> None:
        self._inner.close()
