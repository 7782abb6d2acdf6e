"""The runs of a preset: every data set × grid point × method × seed, each with a fingerprint of its options."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedwcm.config.flags import settings_from
from fedwcm.config.settings import Settings, decisive, from_settings, method_settings, overlay, to_settings
from fedwcm.core.checks import require, unknown
from fedwcm.data import DATASETS, synthetic
from fedwcm.experiment.components import Components
from fedwcm.experiment.partitioning import run_dataset
from fedwcm.reproduction.presets import Preset, chosen_methods, point_settings

EVALUATIONS = 100
"""Evaluations of a full run: every fifth of 500 rounds."""


@dataclass(frozen=True)
class Scope:
    """Which part of a preset is run, and how.

    Args:
        dataset: data sets in place of the preset's own.
        methods: in place of the preset's own, by the paper's names or as `--methods` of a comparison.
        seeds: in place of the preset's own.
        only: of an axis of the preset's grid, these values, as the table shows them.
        fraction: share of the preset's rounds.
        settings: dotted options on top of the preset's.
    """

    dataset: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fraction: float = 1.0
    settings: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "fraction", self.fraction, "in (0, 1]")
        for key in {"run.seed", "method.name"} & (self.settings or {}).keys():
            raise ValueError(f"{key} is not for --set: seeds and methods have options of their own")


@dataclass(frozen=True)
class Cell:
    """One run of a preset: where it stands in the table, its options, and the digest of data that may change."""

    point: Mapping[str, str]
    seed: int
    settings: Settings
    data_digest: str = ""

    @property
    def dataset(self) -> str:
        return str(self.settings["data.dataset"])

    @property
    def label(self) -> str:
        return ", ".join(self.point.values())

    @property
    def fingerprint(self) -> str:
        """The same for the same options, whether given or default, on the same data."""
        return self._hash(self.resolve())

    @property
    def lineage(self) -> str:
        """The same for runs that differ in their rounds alone."""
        return self._hash({key: value for key, value in self.resolve().items() if key != "run.rounds"})

    @property
    def rounds(self) -> int:
        return int(str(self.settings["run.rounds"]))

    def resolve(self) -> Settings:
        """Return all options that affect the result, with the present defaults of the components."""
        config = from_settings(self.settings)
        return decisive(to_settings(Components.of(config).resolve_options(config)))

    def _hash(self, options: Settings) -> str:
        text = json.dumps(options, default=list, sort_keys=True) + self.data_digest
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def expand(preset: Preset, scope: Scope) -> list[Cell]:
    """Return the runs of a preset on the data that is there, in the order of its table, seed by seed."""
    missing = preset.missing(scope.dataset)
    methods = chosen_methods(preset, scope.methods)
    seeds = scope.seeds or preset.seeds
    cells = [
        _cell(preset, scope, dataset, point, (title, spec), seed)
        for seed in seeds
        for dataset in scope.dataset or preset.datasets
        if dataset not in missing
        for point in _points(preset, scope.only)
        for title, spec in methods.items()
    ]
    one_of_each = {cell.dataset: cell for cell in cells}
    digests = {dataset: _data_digest(cell.settings) for dataset, cell in one_of_each.items()}
    return [replace(cell, data_digest=digests[cell.dataset]) for cell in cells]


def _data_digest(settings: Settings) -> str:
    """Return the digest of the file or folder of the data; empty for a named data set, which cannot change."""
    config = from_settings(settings)
    return "" if config.data.dataset in (*DATASETS, synthetic.NAME) else run_dataset(config).digest


def _points(preset: Preset, only: Mapping[str, Sequence[str]]) -> Iterator[dict[str, object]]:
    grid = dict(preset.grid)
    for axis, labels in only.items():
        if axis not in grid:
            raise unknown(f"axis of {preset.name}", axis, grid)
        by_label = {point_settings(value)[0]: value for value in grid[axis]}
        for label in labels:
            if label not in by_label:
                raise unknown(f"{axis} of {preset.name}", label, by_label)
        grid[axis] = [by_label[label] for label in labels]
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _cell(
    preset: Preset, scope: Scope, dataset: str, point: dict[str, object], method: tuple[str, str], seed: int
) -> Cell:
    title, spec = method
    settings, labels = preset.settings_on(dataset), {"dataset": dataset}
    for axis, value in point.items():
        labels[axis], options = point_settings(value)
        settings = overlay(settings, settings_from(None, None, options, {} if options else {axis: value}))
    chosen, own = scope.settings or {}, method_settings(spec)
    for key in chosen.keys() & own.keys():
        raise ValueError(f"{title} fixes {key}, which --set gives: leave it out of one of them")
    settings = overlay(settings, chosen)
    rounds = max(1, math.ceil(scope.fraction * int(str(settings["run.rounds"])) - 1e-9))  # 0.28 of 300 is 84
    timing = {"run.eval_every": max(1, rounds // EVALUATIONS), **chosen, "run.rounds": rounds}
    settings = overlay(overlay(settings, timing), own)
    return Cell({**labels, "method": title}, seed, {**settings, "run.seed": seed, "run.name": spec})
