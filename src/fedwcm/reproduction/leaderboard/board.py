"""What the leaderboard runs: tasks, rows, and the same number of trials for each row; a file adds a row."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path

from fedwcm.config.recipes import RECIPES
from fedwcm.config.settings import Settings, from_settings, method_settings, overlay
from fedwcm.core.checks import require, unknown
from fedwcm.data import DATASETS
from fedwcm.experiment.partitioning import run_dataset
from fedwcm.methods import METHODS
from fedwcm.reproduction.presets import Cell, Scope, load_preset, source_file

FOLDER = files("fedwcm.reproduction.leaderboard")
RATE = "local.lr"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data with clients, and the options that are its own.

    `digest` is that of the data in `dataset`: stored runs are known by it where the file is missing.
    """

    about: str
    dataset: str
    digest: str = ""
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def file(self) -> Path | None:
        """The file of the data; None for a named data set."""
        return None if self.dataset in DATASETS else source_file(self.dataset)

    @property
    def missing(self) -> str | None:
        """Where the data is to be had; None if it is there."""
        if self.file is None or self.file.exists():
            return None
        return load_preset("natural").sources[self.dataset]


@dataclass(frozen=True)
class Row:
    """A method or recipe, and the settings of which validation data chooses one."""

    name: str
    method: str
    trials: tuple[Settings, ...]


@dataclass(frozen=True, kw_only=True)
class Board:
    """The file `board.toml`."""

    title: str
    baseline: str
    tuning_seeds: list[int]
    seeds: list[int]
    rates: list[float]
    fewer_rates: list[float]
    options: dict[str, dict[str, list[object]]]
    excluded: dict[str, str]
    settings: dict[str, object]
    tasks: dict[str, Task]

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Every method and recipe of the package that is not excluded, then those of the files."""
        names = [name for name in sorted({*METHODS, *RECIPES}) if name not in self.excluded]
        own = {name: self.row(name) for name in (self.baseline, *names)}
        return own | {name: self._row_of(name, text) for name, text in _row_files()}

    def row(self, name: str, method: str = "") -> Row:
        """Return the row of a method with the usual trials."""
        spec, own = method or name, self.options.get(name)
        if own is None:
            return Row(name, spec, tuple({RATE: rate} for rate in self.rates))
        ((key, values),) = own.items()
        return Row(
            name, spec, tuple({RATE: rate, key: value} for rate, value in product(self.fewer_rates, values))
        )

    def _row_of(self, name: str, text: str) -> Row:
        """Return the row of a file: `method`, as `--method` takes it, and `trials` in place of the usual ones."""
        values, where = tomllib.loads(text), f"rows/{name}.toml"
        for key in values.keys() - {"method", "trials"}:
            raise unknown(f"key of {where}:", key, ("method", "trials"))
        require("method" in values, where, values, "a table with a method")
        row = self.row(name, values["method"])
        trials, most = tuple(values.get("trials", row.trials)), len(self.rates)
        require(len(trials) <= most, f"{where}, trials", len(trials), f"at most {most}, as of every row")
        return replace(row, trials=trials)


def load_board() -> Board:
    """Return the leaderboard's description."""
    values = tomllib.loads(FOLDER.joinpath("board.toml").read_text(encoding="utf-8"))
    tasks = {name: Task(**table) for name, table in values.pop("tasks").items()}
    return Board(tasks=tasks, **values)


@dataclass(frozen=True)
class Plan:
    """The part of the leaderboard that is asked for: its tasks, its rows, and the judged seeds."""

    board: Board
    scope: Scope
    tasks: Sequence[str]
    rows: Mapping[str, Row]
    seeds: Sequence[int]
    digests: Mapping[str, str]

    def cells(self, task: str, row: Row, trial: Settings, seeds: Sequence[int]) -> list[Cell]:
        """Return the runs of a row with one of its settings."""
        own = self.board.tasks[task]
        data: Settings = {"data.dataset": str(own.file or own.dataset)}
        settings = overlay(overlay(data, self.board.settings), own.settings)
        settings = overlay(settings, self.scope.settings or {})
        settings["run.rounds"] = max(1, round(self.scope.fraction * int(str(settings["run.rounds"]))))
        settings = overlay(overlay(settings, method_settings(row.method)), trial)
        named = {**settings, "run.name": row.name}
        point = {"dataset": task, "method": row.name}
        return [Cell(point, seed, {**named, "run.seed": seed}, self.digests[task]) for seed in seeds]

    def key(self, cell: Cell) -> str:
        """Return the digest of a run's options and data; where the file of the data lies does not matter."""
        dataset = self.board.tasks[cell.point["dataset"]].dataset
        return replace(cell, settings={**cell.settings, "data.dataset": dataset}).fingerprint


def make_plan(board: Board, scope: Scope) -> Plan:
    """Return what is run of the board: tasks by `--dataset`, rows by `--methods`, judged seeds by `--seeds`."""
    for name in scope.dataset:
        if name not in board.tasks:
            raise unknown("task of the leaderboard:", name, board.tasks)
    require(not scope.only, "--only", dict(scope.only), "left out: the leaderboard has tasks, for --dataset")
    rows = {name: board.rows.get(name) or board.row(name) for name in scope.methods} or board.rows
    seeds = scope.seeds or board.seeds
    shared = {*seeds} & {*board.tuning_seeds}
    require(
        not shared, "--seeds", sorted(shared), f"others than {board.tuning_seeds}, by which settings are chosen"
    )
    tasks = list(scope.dataset or board.tasks)
    plan = Plan(board, scope, tasks, rows, seeds, dict.fromkeys(tasks, ""))
    return replace(plan, digests={task: _digest(plan, task) for task in tasks})


def _digest(plan: Plan, task: str) -> str:
    """Return the digest of a task's file, or the one it should have; none for a named data set."""
    if plan.board.tasks[task].file is None or plan.board.tasks[task].missing:
        return plan.board.tasks[task].digest
    (cell,) = plan.cells(task, plan.board.row(plan.board.baseline), {}, [0])
    return run_dataset(from_settings(cell.settings)).digest


def _row_files() -> Iterator[tuple[str, str]]:
    for file in sorted(FOLDER.joinpath("rows").iterdir(), key=lambda file: file.name):
        yield file.name.removesuffix(".toml"), file.read_text(encoding="utf-8")
