"""Run a table or figure of the paper, or what is left of it, and set both side by side."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwcm.config.settings import from_settings
from fedwcm.experiment.lock import locked
from fedwcm.experiment.progress import Progress
from fedwcm.reproduce.cells import Cell, Scope, expand
from fedwcm.reproduce.estimate import seconds_here, seconds_on_gpu
from fedwcm.reproduce.pages import Pages, write_pages
from fedwcm.reproduce.presets import load_preset, preset_names
from fedwcm.reproduce.store import ResultStore
from fedwcm.reproduce.untrained import write_untrained
from fedwcm.reproduce.working_folder import WorkingFolder
from fedwcm.sweeps.execution import run_all
from fedwcm.sweeps.plan import PlannedRun
from fedwcm.utils.durations import rough_duration

BATCH = 4
"""Runs of each process before what has finished is moved to the results."""


@dataclass(frozen=True)
class Line:
    """A preset in the list: how much of it is done, and the time that the rest takes."""

    name: str
    title: str
    cells: int
    done: int
    here: str
    gpu: str


def reproduce(
    name: str,
    scope: Scope | None = None,
    *,
    results: str | Path = "results",
    pages: str | Path | None = None,
    work: str | Path = "runs/reproduce",
    keep: bool = False,
    jobs: int = 1,
    backend: str | None = None,
    run: bool = True,
    say: Callable[[str], object] = print,
    progress: Callable[[], Progress] | None = None,
) -> Pages:
    """Run what is left of a preset, and write its table, figure and report.

    Args:
        name: the preset.
        scope: which part of it; by default all, at full length.
        results: folder of the finished runs; a run that is there with the same options is not repeated.
        pages: folder for the table, the figures and the report; by default `results`.
        work: folder of the runs in progress, from which an interrupted one goes on.
        keep: leave the models of finished runs there: the same with more rounds goes on from them.
        jobs: runs at a time.
        backend: as of a run; it does not change what is run.
        run: `False` writes the pages from what is there.
        say: told what will be done.
        progress: makes what is told of each run's rounds; None shows nothing.
    """
    preset, scope = load_preset(name), scope or Scope()
    target = Path(pages if pages is not None else results)
    if preset.kind != "training":
        return write_untrained(preset, scope, target)
    cells, store = expand(preset, scope), ResultStore(Path(results))
    working = WorkingFolder(Path(work), keep)
    with locked(working.root):
        working.store_finished(cells, store)
        left = [cell for cell in cells if store.find(cell) is None]
        say(f"{preset.title}: {len(cells)} runs, {len(cells) - len(left)} done, {_forecast(left)}")
        for batch in _batches(left if run else [], jobs):
            try:
                run_all([_run(cell, working, backend) for cell in batch], jobs, progress)
            finally:
                working.store_finished(batch, store)
    return write_pages(preset, scope, [(cell, store.find(cell)) for cell in cells], target)


def listing(scope: Scope | None = None, results: str | Path = "results") -> list[Line]:
    """Every preset: its runs, how many are done, and the time left here and on a GPU by estimate."""
    store, lines = ResultStore(Path(results)), []
    for name in preset_names():
        preset = load_preset(name)
        cells = expand(preset, scope or Scope()) if preset.kind == "training" else []
        left = [cell for cell in cells if store.find(cell) is None]
        here, gpu = rough_duration(seconds_here(left)), rough_duration(seconds_on_gpu(left))
        lines.append(Line(name, preset.title, len(cells), len(cells) - len(left), here, gpu))
    return lines


def _batches(cells: Sequence[Cell], jobs: int) -> Iterator[Sequence[Cell]]:
    """So many runs at a time that their models need little room, and processes seldom wait for each other."""
    size = 1 if jobs == 1 else BATCH * jobs
    for start in range(0, len(cells), size):
        yield cells[start : start + size]


def _forecast(left: Sequence[Cell]) -> str:
    if not left:
        return "nothing left"
    return f"{len(left)} left: about {rough_duration(seconds_here(left))} here by a short calibration"


def _run(cell: Cell, work: WorkingFolder, backend: str | None) -> PlannedRun:
    settings = cell.settings if backend is None else {**cell.settings, "run.backend": backend}
    return PlannedRun(cell.label, cell.seed, from_settings(settings), work.start(cell).path)
