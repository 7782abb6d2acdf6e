"""`fedwcm.compare`: every method × seed × grid point as a run of its own, then one table and one report."""

import itertools
import multiprocessing
import os
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
from typing import TYPE_CHECKING, Literal

import torch

from fedwcm.api.request import Request, flags_in, request
from fedwcm.api.training import start
from fedwcm.api.types import (
    ClientsLike,
    ConfigLike,
    DataLike,
    LossLike,
    MethodLike,
    ModelLike,
    PartitionLike,
    SamplerLike,
)
from fedwcm.config.objects import object_label
from fedwcm.config.schema import INCIDENTAL, Config, Settings, overlay, to_settings
from fedwcm.core.checks import require
from fedwcm.engine.backends.errors import WorkerDiedError, WorkerError
from fedwcm.engine.backends.plan import can_fork
from fedwcm.engine.rounds import DivergedError
from fedwcm.reports.table import Row, csv_table, markdown_table, rows_of, run_numbers
from fedwcm.reports.write import report_or_warn
from fedwcm.runs import interrupts
from fedwcm.runs.comparison_folder import ComparisonFolder
from fedwcm.runs.folder import RunFolder
from fedwcm.runs.lock import locked, wait_until_free
from fedwcm.runs.progress import Progress, Silent
from fedwcm.runs.records import RoundRecord
from fedwcm.runs.trackers.tracking import check_trackers

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

FAILED = 2
"""Exit status of a run in a process of its own that has said why it failed."""

PATIENCE = 30.0
"""Seconds in which a run of a comparison that was killed saves its progress, and ends."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    seed: int
    request: Request
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
    methods: Sequence[MethodLike],
    seeds: Sequence[int],
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[object]] | None = None,
    jobs: int = 1,
    trust: bool = False,
    report: bool = True,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Callable[[], Progress] = Silent,
    dataset: DataLike | None = None,
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    split: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    impute: Literal["median"] | None = None,
    encoding: str | None = None,
    image_size: int | None = None,
    normalize: Literal["auto", "standard", "none"] | Sequence[float] | Sequence[Sequence[float]] | None = None,
    test_fraction: float | None = None,
    val_fraction: float | None = None,
    augment: bool | None = None,
    imbalance: float | Literal["none"] | None = None,
    partition: PartitionLike | None = None,
    clients: ClientsLike | None = None,
    beta: float | None = None,
    model: ModelLike | None = None,
    loss: LossLike | None = None,
    sampler: SamplerLike | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    participation: float | None = None,
    rounds: int | None = None,
    eval_every: int | None = None,
    patience: int | None = None,
    device: str | None = None,
    privacy: Literal["none", "he"] | None = None,
    diagnostics: Sequence[Literal["concentration"]] | None = None,
    track: Sequence[str] | None = None,
    backend: Literal["auto", "sequential", "vectorized", "parallel"] | None = None,
) -> Comparison:
    """Run every method with every seed, and tabulate. Runs that are in `out` already are not repeated.

    Args:
        methods: methods or recipes, each with options in brackets if need be, `"package.module:Name"`, or a
            `Method` or its class.
        seeds: one run of each method for each.
        out: folder for the runs, the table and the report.
        grid: values for dotted options, such as `{"local.lr": [0.03, 0.1]}`: every combination is run.
        jobs: runs at a time, each in a process of its own.
        trust: import what a run's folder, given as `config`, names as `package.module:Name`.
        report: write `report.html`, one for all runs, into `out`.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"method.q": "off"}`.
        progress: makes what is told of each run's rounds.
        dataset: a named data set, a file, a folder of images or `hub:ID`; or data: `(x, y)`,
            `(x_train, y_train, x_test, y_test)` or a dict of arrays or tensors, a list of each client's `(x, y)`,
            a pandas DataFrame, a `torch.utils.data.Dataset`, a Hugging Face `Dataset`, a `fedwcm.Dataset`.
        data_dir: folder in which named data sets are looked for first.
        label: label column of a table or DataFrame.
        client: client column of a table or DataFrame: the natural partition.
        split: column that says `train`, `val` or `test`.
        features: columns of a table to use, by name or pattern.
        drop: columns of a table to leave out, by name or pattern.
        impute: `median`: fill in missing values, which are refused otherwise.
        encoding: encoding of a text file, such as `latin-1`.
        image_size: side of the square that images are scaled and cut to.
        normalize: `auto`, `standard`, `none`, or `[mean, std]`.
        test_fraction: share held out for testing where the data has no test part; 0.2 by default.
        val_fraction: share of the training data held out for validation, which selects the model that is kept.
        augment: flip and crop images at random.
        imbalance: samples of the rarest class over those of the most frequent, in (0, 1], made by leaving samples
            out; `"none"` for the data as it is. Named data sets have 0.1 by default.
        partition: how samples are divided among clients: a name or a `Partition`.
        clients: number of clients; or the client of every training sample, in the order of the data.
        beta: Dirichlet concentration: smaller is more heterogeneous.
        model: a model's name or `package.module:factory`; an `nn.Module`, which is copied; or what makes one.
        loss: the clients' loss: a name, `package.module:Name`, a `Loss` or its class.
        sampler: how clients draw their batches: a name, `package.module:Name`, a `Sampler` or its class.
        epochs: local epochs per round.
        batch_size: samples in a mini-batch.
        lr: local learning rate.
        participation: share of the clients sampled each round.
        rounds: communication rounds.
        eval_every: rounds between evaluations.
        patience: evaluations in a row without a better one on the validation data after which a run stops.
        device: `auto`, `cpu`, `cuda`, `mps`, …
        privacy: `none`, or `he`: gather the class distribution under homomorphic encryption.
        diagnostics: what else to measure at every evaluation: `concentration`.
        track: trackers to tell of the run: `tensorboard`, `mlflow`, `wandb`.
        backend: `auto`, `sequential`, `vectorized` or `parallel`.
    """
    require(jobs >= 1, "jobs", jobs, "at least 1")
    common = request(None, config, settings, flags_in(locals()), trust=trust)
    cells = plan(methods, seeds, grid or {}, common, Path(out))
    for cell in cells:
        check_trackers(cell.request.config.run.track, cell.folder)
    with locked(Path(out)):
        ComparisonFolder(Path(out)).write_index({cell.folder.name: cell.label for cell in cells})
        if jobs == 1:
            for number, cell in enumerate(cells, 1):
                _run_here(cell, f"{number}/{len(cells)}", progress())
        else:
            _run_apart(cells, jobs, sys.stderr.write if progress is not Silent else lambda _: 0)
        return collect(cells, Path(out), report)


def plan(
    methods: Sequence[MethodLike],
    seeds: Sequence[int],
    grid: Mapping[str, Sequence[object]],
    common: Request,
    out: Path,
) -> list[Cell]:
    """The runs of a comparison. What is said of a method in its brackets wins over the grid and the rest."""
    cells = []
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for method, point, seed in itertools.product(methods, points, seeds):
        own = request(method, None, None, {})
        name = method if isinstance(method, str) else object_label(method)
        suffix = ", ".join(f"{key}={value}" for key, value in point.items())
        label = f"{name} ({suffix})" if suffix else name
        settings = overlay(overlay(common.settings, point), own.settings)
        settings = overlay(settings, {"run.seed": seed, "run.name": name})
        objects = replace(common.objects, method=own.objects.method)
        path = ComparisonFolder(out).run_path(label, seed)
        cells.append(Cell(label, seed, Request(settings, objects, common.trusted), path))
    if len({cell.folder for cell in cells}) < len(cells):
        raise ValueError("two of the methods have the same name and options: give one of them another class name")
    return cells


def collect(cells: Sequence[Cell], out: Path, report: bool) -> Comparison:
    """Tabulate the finished runs, and write the report."""
    runs: dict[str, list[RunFolder]] = {}
    for cell in cells:
        runs.setdefault(cell.label, []).append(RunFolder(cell.folder))
    rows = rows_of(
        {label: [run_numbers(folder.summary()) for folder in folders] for label, folders in runs.items()}
    )
    ComparisonFolder(out).write_outcomes({cell.folder.name: cell.label for cell in cells})
    ComparisonFolder(out).write_tables(csv_table(rows), f"# Comparison\n\n{markdown_table(rows)}\n")
    return Comparison(runs, rows, report_or_warn(out) if report else None)


def _run_here(cell: Cell, position: str, progress: Progress) -> None:
    if _done(cell):
        return
    _play(cell, cell.request, _Titled(progress, f"{cell.label} [{position}]"))


def _run_apart(cells: Sequence[Cell], jobs: int, say: Callable[[str], object]) -> None:
    """Each run in a process of its own with one thread, at most so many at a time."""
    context = _context()
    if context.get_start_method() != "fork" and any(cell.request.objects for cell in cells):
        raise ValueError(
            f"jobs = {jobs} is not allowed: objects cannot be handed to new processes here; use jobs=1"
        )
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
            process.terminate()  # as Ctrl-C: it saves its progress
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
            _play(cell, replace(cell.request, settings={**cell.request.settings, "run.workers": 1}), Silent())
        except KeyboardInterrupt:
            sys.exit(interrupts.exit_status())
        except (ValueError, OSError) as error:
            print(f"error: {cell.label}, seed {cell.seed}: {error}", file=sys.stderr)
            sys.exit(FAILED)


def _stop_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)


def _play(cell: Cell, asked: Request, progress: Progress) -> None:
    with suppress(DivergedError):  # its summary says so, and the table shows it
        start(asked, out=cell.folder, resume=True, report=False, progress=progress)


def _done(cell: Cell) -> bool:
    """Whether the run is in its folder, finished; one with another configuration is refused when it is run."""
    return RunFolder(cell.folder).finished and not _stale(cell)


def _stale(cell: Cell) -> bool:
    """Whether what was asked for differs from what the folder holds; the folder's options are all resolved."""
    held, asked = _settings_of(RunFolder(cell.folder).config()), _settings_of(cell.request.config)
    return any(key in held and held[key] != value for key, value in asked.items() if value != "auto")


def _settings_of(config: Config) -> Settings:
    return {key: value for key, value in to_settings(config).items() if key not in INCIDENTAL}


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
