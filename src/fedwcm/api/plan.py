"""The runs of a comparison, resolved and checked before the first of them starts."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedwcm.api.continuation import refuse_another
from fedwcm.api.request import Request, request
from fedwcm.api.types import MethodLike
from fedwcm.config.build import RunData, assemble, run_data
from fedwcm.config.components import Components
from fedwcm.config.flags import option_key
from fedwcm.config.objects import object_label
from fedwcm.config.population import largest_cohort
from fedwcm.config.recipes import expanded
from fedwcm.config.schema import INCIDENTAL, Config, Settings, overlay, to_settings
from fedwcm.runs.comparison_folder import ComparisonFolder
from fedwcm.runs.folder import RunFolder
from fedwcm.runs.trackers.tracking import check_trackers


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    seed: int
    request: Request
    folder: Path


def plan(
    methods: Sequence[MethodLike],
    seeds: Sequence[int],
    grid: Mapping[str, Sequence[object]],
    common: Request,
    out: Path,
) -> list[Cell]:
    """The runs of a comparison: every method at every point of the grid with every seed.

    Raises:
        ValueError: the grid varies an option that a method fixes in its brackets, or two runs are the same.
    """
    cells = []
    grid = {option_key(name): values for name, values in grid.items()}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for method, point, seed in itertools.product(expanded(methods), points, seeds):
        own = request(method, None, None, {})
        name = method if isinstance(method, str) else object_label(method)
        for key in point.keys() & own.settings.keys():
            raise ValueError(f"{name} fixes {key}, which the grid varies: leave it out of one of them")
        suffix = ", ".join(f"{key}={value}" for key, value in point.items())
        label = f"{name} ({suffix})" if suffix else name
        settings = overlay(overlay(common.settings, own.settings), point)
        settings = overlay(settings, {"run.seed": seed, "run.name": name})
        objects = replace(common.objects, method=own.objects.method)
        path = ComparisonFolder(out).run_path(label, seed)
        cells.append(Cell(label, seed, Request(settings, objects, common.trusted), path))
    if len({cell.folder for cell in cells}) < len(cells):
        raise ValueError("two of the methods have the same name and options: give one of them another class name")
    return cells


def check(cells: Sequence[Cell]) -> int:
    """Raise for a run that could not start: options first, then what needs the data, which is loaded once a task.

    Runs that differ by their seed only are checked once, finished ones not at all.

    Returns:
        The size of the largest round of all: its clients times the parameters of their models.
    """
    for cell in cells:
        check_trackers(cell.request.config.run.track, cell.folder)
    first = {cell.label: cell for cell in reversed(cells) if not done(cell)}
    components = {label: _components(cell) for label, cell in first.items()}
    tasks: dict[str, list[Cell]] = {}
    for cell in reversed(first.values()):
        tasks.setdefault(_task(cell.request.config), []).append(cell)
    largest = 0
    for members in tasks.values():
        asked = members[0].request
        data = run_data(asked.config, asked.objects, trusted=asked.trusted)
        for cell in members:
            largest = max(largest, _check_on(data, cell, components[cell.label]))
    return largest


def _components(cell: Cell) -> Components:
    return Components.of(cell.request.config, cell.request.objects, trusted=cell.request.trusted)


def _task(config: Config) -> str:
    """What the samples, their division and their form depend on."""
    return repr((config.data, config.partition, config.model, config.run.device))


def _check_on(data: RunData, cell: Cell, components: Components) -> int:
    """Raise if the run cannot be built on this data, or its folder holds another one; return a round's size."""
    asked = cell.request
    alone = replace(asked.config, run=replace(asked.config.run, workers=1))
    if alone.run.backend == "ray":
        alone = replace(alone, run=replace(alone.run, backend="sequential"))
    experiment = assemble(alone, components, data, asked.objects, trusted=asked.trusted)
    experiment.rounds.backend.close()
    folder = RunFolder(cell.folder)
    if folder.holds_run:
        refuse_another(folder, experiment)
    cohort = largest_cohort(experiment.config, experiment.rounds.trainer.population)
    return cohort * experiment.network.size


def done(cell: Cell) -> bool:
    """Whether the run is in its folder, finished; one with another configuration is refused."""
    return RunFolder(cell.folder).finished and not _stale(cell)


def _stale(cell: Cell) -> bool:
    """Whether what was asked for differs from what the folder holds; the folder's options are all resolved."""
    held, asked = _settings_of(RunFolder(cell.folder).config()), _settings_of(cell.request.config)
    return any(key in held and held[key] != value for key, value in asked.items() if value != "auto")


def _settings_of(config: Config) -> Settings:
    return {key: value for key, value in to_settings(config).items() if key not in INCIDENTAL}
