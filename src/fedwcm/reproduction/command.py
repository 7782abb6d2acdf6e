"""Run a table or figure of the paper, or what is left of it, and set both side by side."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedwcm.config.flags import settings_from
from fedwcm.config.settings import from_settings, overlay
from fedwcm.core.types import Ints
from fedwcm.data.partition import counts_of, describe
from fedwcm.experiment.components import Components
from fedwcm.experiment.files import replace_file
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.lock import locked
from fedwcm.experiment.partitioning import partition_data
from fedwcm.experiment.progress import Progress, progress_maker
from fedwcm.experiment.start import extension_problem, has_finished
from fedwcm.reports.division import division_table, draw_divisions
from fedwcm.reproduction.estimate import seconds_here, seconds_on_gpu, stored_rates
from fedwcm.reproduction.pages import Pages, command_line, write_pages
from fedwcm.reproduction.presets import SOURCES_IN, Cell, Preset, Scope, expand, load_preset, preset_names
from fedwcm.reproduction.store import ResultStore
from fedwcm.reproduction.table import rows_of_paper
from fedwcm.sweeps.execution import run_all
from fedwcm.sweeps.plan import PlannedRun
from fedwcm.utils.text import format_markdown, rough_duration


def write_untrained(preset: Preset, scope: Scope, folder: Path) -> Pages:
    """Measure, and write the pages."""
    return _division(preset, scope, folder) if preset.kind == "partition" else _encryption(preset, scope, folder)


def _division(preset: Preset, scope: Scope, folder: Path) -> Pages:
    dataset = (scope.dataset or preset.datasets)[0]
    counts: dict[str, Ints] = {}
    classes: tuple[str, ...] = ()
    for value in preset.grid["partition"]:
        common = preset.settings_on(dataset)
        division = {key: common[key] for key in ("partition.clients", "partition.beta")}
        settings = overlay(common, settings_from(None, None, division, {"partition": value}))
        settings = overlay(settings, {"run.seed": (scope.seeds or preset.seeds)[0], **(scope.settings or {})})
        data = partition_data(from_settings(settings))
        counts[str(value)] = counts_of(data.parts, data.train_labels, data.dataset.num_classes)
        classes = tuple(data.dataset.classes)
    picture = folder / f"{preset.name}.png"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [picture] if draw_divisions(counts, classes, dataset, picture) else []
    table = division_table({name: describe(table) for name, table in counts.items()})
    return _write(preset, scope, folder, f"```\n{table}\n```", drawn)


def _encryption(preset: Preset, scope: Scope, folder: Path) -> Pages:
    from fedwcm.privacy.bench import benchmark

    lines = []
    paper = rows_of_paper(preset.name)
    for row, printed in zip(benchmark([int(row["classes"]) for row in paper]), paper, strict=True):
        theirs = (int(printed["plaintext_bytes"]), int(printed["ciphertext_bytes"]))
        numbers = (row.plaintext_bytes, theirs[0], row.ciphertext_bytes, theirs[1])
        lines.append([str(row.classes), *(f"{number:,}" for number in numbers)])
    head = ["classes", "plaintext bytes", "the paper's", "ciphertext bytes", "the paper's"]
    return _write(preset, scope, folder, format_markdown(head, lines), [])


def _write(preset: Preset, scope: Scope, folder: Path, table: str, drawn: list[Path]) -> Pages:
    path = folder / f"{preset.name}.md"
    pictures = [f"![{preset.title}]({file.name})\n" for file in drawn]
    head = f"# {preset.title}\n\nWritten by `{command_line(preset, scope)}`.\n\n{table}\n\n"
    replace_file(path, head + "".join(pictures))
    return Pages(table, path, figures=drawn)


@dataclass(frozen=True)
class WorkingFolder:
    """Folders of runs, named by their options and rounds.

    Args:
        root: where they are.
        keep: whether a finished run stays when its metrics are stored.
    """

    root: Path
    keep: bool = False

    def start(self, cell: Cell) -> RunFolder:
        """Return a run's folder: a new one, its own if it was interrupted, or a shorter run's, which goes on."""
        folder = self._folder(cell, cell.rounds)
        shorter = None if folder.path.exists() else self._shorter(cell)
        if shorter is not None:
            shorter.path.rename(folder.path)
        return folder

    def store_finished(self, cells: Iterable[Cell], store: ResultStore) -> None:
        """Store the runs that have finished."""
        for cell in cells:
            folder = self._folder(cell, cell.rounds)
            finished = has_finished(folder, from_settings(cell.settings).run)
            if finished and store.find(cell) is None:
                store.add(cell, folder)
            if finished and not self.keep:
                with suppress(OSError):
                    shutil.rmtree(folder.path)

    def _folder(self, cell: Cell, rounds: int) -> RunFolder:
        return RunFolder(self.root / f"{cell.lineage}-{rounds}")

    def _shorter(self, cell: Cell) -> RunFolder | None:
        """Return the longest finished run with the same options and fewer rounds that this one can extend."""
        config = from_settings(cell.settings)
        components = Components.of(config)
        known = (int(path.name.rpartition("-")[2]) for path in self.root.glob(f"{cell.lineage}-*"))
        for rounds in sorted((n for n in known if n < cell.rounds), reverse=True):
            folder = self._folder(cell, rounds)
            if folder.finished and extension_problem(config, components.method, components.loss, rounds) is None:
                return folder
        return None


LEADERBOARD = "leaderboard"
"""The table of all methods, which is no preset: its rows have trials."""

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
    *,
    dataset: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    only: Mapping[str, Sequence[str]] | None = None,
    fraction: float = 1.0,
    settings: Mapping[str, object] | None = None,
    results: str | Path = "results",
    pages: str | Path | None = None,
    work: str | Path = "runs/reproduce",
    keep: bool = False,
    jobs: int = 1,
    backend: str | None = None,
    pages_only: bool = False,
    say: Callable[[str], object] = print,
    progress: Callable[[], Progress] | bool | None = None,
) -> Pages:
    """Run what is left of a table or figure of the paper, and set our numbers beside the paper's.

    Args:
        name: the table or figure: `fedwcm reproduce --list` has the names.
        dataset: data sets, in place of those of the paper.
        methods: methods, in place of the paper's, by its names or as `fedwcm.compare` takes them.
        seeds: seeds, in place of the usual ones.
        only: of an axis of the table, these values: `{"imbalance": ["0.1"]}`.
        fraction: share of the rounds, in (0, 1].
        settings: dotted options on top of the preset's.
        results: folder of the finished runs; a run that is there with the same options is not repeated.
        pages: folder for the table, the figures and the report; by default `results`.
        work: folder of the runs in progress, from which an interrupted one goes on.
        keep: leave the models of finished runs there: the same with more rounds goes on from them.
        jobs: runs at a time.
        backend: as of a run; it does not change what is run.
        pages_only: run nothing, and write the pages from what is there.
        say: called with a sentence on what will be done.
        progress: whether to show how far the runs are, as in `fedwcm.compare`.
    """
    scope = Scope(dataset, methods, seeds, only or {}, fraction, settings)
    target = Path(pages if pages is not None else results)
    if name == LEADERBOARD:
        from fedwcm.reproduction.leaderboard.command import run_board

        return run_board(scope, Path(results), target, jobs, say, run=not pages_only)
    preset = load_preset(name)
    if preset.kind != "training":
        return write_untrained(preset, scope, target)
    for file, source in preset.missing(dataset).items():
        say(f"{file} is not in the folder that {SOURCES_IN} names: {source}")
    cells, store = expand(preset, scope), ResultStore(Path(results))
    if not cells:
        raise ValueError(f"{name} has no data here: set {SOURCES_IN} to the folder of its files, named above")
    working = WorkingFolder(Path(work), keep)
    with locked(working.root):
        working.store_finished(cells, store)
        left = [cell for cell in cells if store.find(cell) is None]
        say(f"{preset.title}: {len(cells)} runs, {len(cells) - len(left)} done, {_forecast(left, store)}")
        waiting = [] if pages_only else left
        for batch in _batches(waiting, jobs):
            if len(batch) < len(waiting) and jobs > 1:  # the display counts the runs of a batch
                first = waiting.index(batch[0]) + 1
                say(f"runs {first} to {first + len(batch) - 1} of {len(waiting)}")
            try:
                run_all([_run(cell, working, backend) for cell in batch], jobs, progress_maker(progress))
            finally:
                working.store_finished(batch, store)
    return write_pages(preset, scope, [(cell, store.find(cell)) for cell in cells], target)


def listing(scope: Scope | None = None, results: str | Path = "results") -> list[Line]:
    """Return every preset: its runs, how many are done, and the time left here and on a GPU by estimate."""
    store, lines = ResultStore(Path(results)), []
    rates = stored_rates(store)
    for name in preset_names():
        preset = load_preset(name)
        cells = expand(preset, scope or Scope()) if preset.kind == "training" else []
        left = [cell for cell in cells if store.find(cell) is None]
        here, gpu = rough_duration(seconds_here(left, rates)), rough_duration(seconds_on_gpu(left))
        lines.append(Line(name, preset.title, len(cells), len(cells) - len(left), here, gpu))
    return lines


def _batches(cells: Sequence[Cell], jobs: int) -> Iterator[Sequence[Cell]]:
    """Yield so many runs at a time that their models need little room, and processes seldom wait."""
    size = 1 if jobs == 1 else BATCH * jobs
    for start in range(0, len(cells), size):
        yield cells[start : start + size]


def _forecast(left: Sequence[Cell], store: ResultStore) -> str:
    if not left:
        return "nothing left"
    time = rough_duration(seconds_here(left, stored_rates(store)))
    return f"{len(left)} left: about {time} at the pace of stored runs, or of some training steps"


def _run(cell: Cell, work: WorkingFolder, backend: str | None) -> PlannedRun:
    settings = cell.settings if backend is None else {**cell.settings, "run.backend": backend}
    return PlannedRun(cell.label, cell.seed, from_settings(settings), work.start(cell).path)
