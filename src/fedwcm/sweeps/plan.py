"""The runs of a comparison, resolved and checked before the first of them starts."""

import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedwcm.config.flags import option_key
from fedwcm.config.recipes import RECIPES
from fedwcm.config.schema import Config
from fedwcm.config.settings import Settings, decisive, from_settings, overlay, split_list, to_settings
from fedwcm.core.checks import require
from fedwcm.core.method import Method
from fedwcm.core.torch_rng import default_torch_modes
from fedwcm.experiment.build import RunData, assemble, run_data
from fedwcm.experiment.components import Components, reject_unused_options
from fedwcm.experiment.evaluator import find_metrics
from fedwcm.experiment.folder import ComparisonFolder, RunFolder
from fedwcm.experiment.records import PartitionRecord
from fedwcm.experiment.start import partition_of, require_resumable, require_same_partition
from fedwcm.experiment.trackers.tracking import check_trackers


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison."""

    label: str
    seed: int
    config: Config
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def data_key(self) -> str:
        """The options on which the samples, their division and their format depend."""
        config = self.config
        return repr((config.data, config.partition, config.model, config.run.device, config.run.seed))


@dataclass(frozen=True)
class Preflight:
    """What checking the runs of a label has shown, and their options, resolved.

    `round_size` is the clients of a round times the parameters of their models; `fingerprint` that of the data,
    None if it is generated; `split` says who has what with the first seed; `validates` tells whether there is
    validation data.
    """

    config: Config
    round_size: int
    fingerprint: str | None
    split: PartitionRecord
    validates: bool


def plan(
    methods: Sequence[tuple[str, Settings]],
    seeds: Sequence[int],
    grid: Mapping[str, Sequence[object]],
    common: Settings,
    out: Path,
) -> list[PlannedRun]:
    """Return the runs of a comparison: every method, by name and settings, at every grid point with every seed.

    Raises:
        ValueError: the grid varies an option that a method fixes in its brackets, or two runs are the same.
    """
    planned_runs = []
    seeds = seed_list(seeds)
    grid = {option_key(name): values for name, values in grid_lists(grid).items()}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    shared = [with_method(common, own, name) for name, own in methods]
    for (i, (name, own)), point, seed in itertools.product(enumerate(methods), points, seeds):
        for key in point.keys() & own.keys():
            raise ValueError(f"{name} fixes {key}, which the grid varies: leave it out of one of them")
        suffix = ", ".join(f"{key}={value}" for key, value in point.items())
        label = f"{name} ({suffix})" if suffix else name
        settings = overlay(overlay(shared[i], point), {"run.seed": seed, "run.name": name})
        path = ComparisonFolder(out).run_path(label, seed)
        planned_runs.append(PlannedRun(label, seed, from_settings(settings), path))
    if len({planned.folder for planned in planned_runs}) < len(planned_runs):
        raise ValueError("two of the methods have the same name and options: give one of them another class name")
    return planned_runs


def with_method(common: Settings, own: Settings, method: str) -> Settings:
    """Return the settings of one of several methods: its own on top of those for all.

    A recipe keeps its own settings; a warning names the common settings that it overrides.
    """
    recipe = RECIPES.get(method.partition("[")[0])
    for key, value in (recipe.settings if recipe else {}).items():
        if key != "method.name" and common.get(key, value) != value:
            warnings.warn(f"{method} keeps its own {key} = {value}, not {common[key]}", stacklevel=2)
    return overlay(common, own)


class SharedData:
    """The samples that runs have in common: loaded for the first of them, kept until those of others are."""

    def __init__(self) -> None:
        self._key = ""
        self._data: RunData | None = None

    def of(self, planned: PlannedRun) -> RunData:
        """Return the samples of a run."""
        if self._data is None or not self.holds(planned):
            self._data = None  # before others are loaded, which may need the room
            with default_torch_modes():
                self._key, self._data = planned.data_key, run_data(planned.config)
        return self._data

    def get(self, planned: PlannedRun) -> RunData | None:
        """Return the samples of a run if they are there."""
        return self._data if self.holds(planned) else None

    def holds(self, planned: PlannedRun) -> bool:
        """Return whether the samples of a run are there."""
        return planned.data_key == self._key


def group_by_data(planned_runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return the runs with those of the same samples side by side, else in the same order."""
    runs = list(planned_runs)
    keys = list(dict.fromkeys(run.data_key for run in runs))
    return sorted(runs, key=lambda run: keys.index(run.data_key))


def check(planned_runs: Sequence[PlannedRun], data: SharedData | None = None) -> dict[str, Preflight]:
    """Raise for a run that could not start: options first, then what needs the data, loaded once per task.

    Runs that differ by their seed only are built once. A folder with another run is refused, finished or not.

    Args:
        planned_runs: all runs.
        data: where the data is kept for the runs.

    Returns:
        What was found for each label.
    """
    alike: dict[str, list[PlannedRun]] = {}
    for planned in planned_runs:
        check_trackers(planned.config.run.track, planned.folder)
        find_metrics(planned.config.run.metrics)
        alike.setdefault(planned.label, []).append(planned)
    components = {label: Components.of(members[0].config) for label, members in alike.items()}
    for label, members in alike.items():
        reject_unused_options(members[0].config, components[label])
    data = data or SharedData()
    return {
        first.label: _check_on(data.of(first), alike[first.label], components[first.label])
        for first in group_by_data(members[0] for members in alike.values())
    }


def _check_on(data: RunData, planned_runs: Sequence[PlannedRun], components: Components) -> Preflight:
    """Raise if runs of one label cannot be built on the data, or a folder holds another."""
    config = planned_runs[0].config
    alone = replace(config, run=replace(config.run, workers=1))
    if alone.run.backend == "ray":
        alone = replace(alone, run=replace(alone.run, backend="sequential"))
    experiment = assemble(alone, components, data)
    experiment.rounds.backend.close()
    split = partition_of(experiment)
    for planned in planned_runs:
        folder = RunFolder(planned.folder)
        if not folder.holds_run:
            continue
        config = replace(experiment.config, run=replace(experiment.config.run, seed=planned.seed))
        require_resumable(folder, config, experiment)
        if planned is planned_runs[0]:  # whose seed the experiment has
            require_same_partition(folder, split)
    cohort = experiment.config.participation.cohort_size(experiment.rounds.trainer.population.clients)
    return Preflight(
        experiment.config,
        cohort * experiment.network.size,
        experiment.facts.fingerprint,
        split,
        experiment.val is not None,
    )


def is_done(planned: PlannedRun) -> bool:
    """Return whether the finished run is in its folder, as far as can be told without the data."""
    return RunFolder(planned.folder).finished and not _stale(planned)


def _stale(planned: PlannedRun) -> bool:
    """Return whether the folder's run, whose options are all resolved, has other options."""
    before = decisive(to_settings(RunFolder(planned.folder).config()))
    wanted = decisive(to_settings(planned.config))
    return any(key in before and before[key] != value for key, value in wanted.items() if value != "auto")


def method_list(methods: Sequence[str | Method | type[Method]]) -> list[Any]:
    """Return the methods, which may be text `a,b`; refuse an empty list and a name that is there twice."""
    return _check_list("methods", split_list(methods) if isinstance(methods, str) else methods, "methods")


def seed_list(seeds: Sequence[int]) -> list[int]:
    """Return the seeds as integers; refuse an empty list and a seed that is there twice."""
    checked = _check_list("seeds", seeds, "whole numbers")
    for seed in checked:
        require(isinstance(seed, int) and not isinstance(seed, bool), "seeds", seeds, "a list of whole numbers")
    return checked


def grid_lists(grid: Mapping[str, Sequence[object]]) -> dict[str, list[object]]:
    """Return the values of each option of a grid; refuse an empty list and a value that is there twice."""
    return {name: _check_list(f"grid[{name!r}]", values, "values") for name, values in grid.items()}


def _check_list(where: str, values: Any, of: str) -> list[Any]:
    is_list = isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping))
    require(is_list, where, values, f"a list of {of}")
    items = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not items:
        raise ValueError(f"{where} is empty: it must hold at least one of the {of}")
    text, times = Counter(map(repr, items)).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{where} has {text} {times} times: leave it in once")
    return items
