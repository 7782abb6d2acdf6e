"""The presets: what each table and figure of the paper runs, and in which layout it is shown.

A preset expands to cells, its runs: every data set × grid point × method × seed.
"""

import hashlib
import itertools
import json
import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from fedwcm.config.flags import settings_from
from fedwcm.config.options import make
from fedwcm.config.recipes import expand_sets
from fedwcm.config.settings import (
    Settings,
    decisive,
    from_settings,
    method_settings,
    overlay,
    split_list,
    to_settings,
)
from fedwcm.core.checks import require_allowed, unknown
from fedwcm.core.ranges import PositiveShare
from fedwcm.data import DATASETS, synthetic
from fedwcm.experiment.components import Components
from fedwcm.experiment.partitioning import run_dataset

FOLDER = files("fedwcm.reproduction") / "presets"
COMMON = "common.toml"
SOURCES_IN = "FEDWCM_NATURAL"
"""The variable that names the folder of files that the project cannot ship; `data/natural` by default."""


@dataclass(frozen=True, kw_only=True)
class FigureSpec:
    """The figure of a preset.

    Args:
        kind: `curves` over rounds, accuracy by `classes`, accuracy over an `axis` of the grid, or the `division`
            of the samples among clients; `none` for none.
        metrics: what the curves show, one figure each.
        axis: the horizontal axis.
    """

    kind: Literal["none", "curves", "classes", "axis", "division"] = "none"
    metrics: tuple[str, ...] = ()
    axis: str = ""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A table or figure of the paper.

    Args:
        kind: `training`, or what is measured instead: the `partition` alone, the cost of `encryption`.
        datasets: those of the paper; the paper's numbers are about them.
        methods: what is run, by the names that the paper uses.
        grid: values of options, by the names of flags; a value may be a table of a `label` and dotted options.
        settings, dataset_settings: dotted options of all runs, and of those on one data set.
        sources: data sets that are files which the project cannot ship, with where each is to be had.
        rows, columns: which axes of the grid run down and across the table.
    """

    name: str
    title: str
    kind: Literal["training", "partition", "encryption"] = "training"
    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    methods: dict[str, str]
    grid: dict[str, list[object]] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    dataset_settings: dict[str, dict[str, object]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    figure: FigureSpec = field(default_factory=FigureSpec)

    def settings_on(self, dataset: str) -> Settings:
        """Return the options of every run on this data set, before those of the grid and the method."""
        common = _common()
        known = common["datasets"].get(dataset, {}).get("settings", {})
        merged: Settings = {"data.dataset": str(source_file(dataset)) if dataset in self.sources else dataset}
        for above in (
            common["paper"],
            common["house"],
            known,
            self.settings,
            self.dataset_settings.get(Path(dataset).name, {}),
        ):
            merged = overlay(merged, above)
        return merged

    def missing(self, datasets: Sequence[str]) -> dict[str, str]:
        """Return which of the data sets are files that are not there, and where each is to be had."""
        chosen = {name: self.sources[name] for name in datasets or self.datasets if name in self.sources}
        return {name: source for name, source in chosen.items() if not source_file(name).exists()}


def source_file(dataset: str) -> Path:
    """Return where a file of data that the project cannot ship is looked for."""
    return Path(os.environ.get(SOURCES_IN, "data/natural")) / dataset


def preset_names() -> list[str]:
    """Return the names of all presets, in alphabetical order."""
    return sorted(
        file.name.removesuffix(".toml")
        for file in FOLDER.iterdir()
        if file.name.endswith(".toml") and file.name != COMMON
    )


def load_preset(name: str) -> Preset:
    """Return the preset of this name."""
    if name not in preset_names():
        raise unknown("preset", name, preset_names())
    values = _read(f"{name}.toml")
    figure = make(FigureSpec, values.pop("figure", {}), "figure")
    values |= {key: tuple(values[key]) for key in ("datasets", "seeds", "rows", "columns")}
    return Preset(name=name, figure=figure, **values)


def house_settings() -> Settings:
    """Return the options that the paper leaves out."""
    return dict(_common()["house"])


def class_samples(dataset: str) -> int | None:
    """Return the training samples of the most frequent class; None for a data set without an entry."""
    entry = _common()["datasets"].get(dataset)
    return None if entry is None else int(entry["class_samples"])


def point_settings(value: object) -> tuple[str, Settings | None]:
    """Return the label of a value of the grid and, if it is a table, the dotted options that it stands for."""
    if not isinstance(value, dict):
        return f"{value:g}" if isinstance(value, int | float) else str(value), None
    return str(value["label"]), {key: option for key, option in value.items() if key != "label"}


def split_labels(text: str, labels: Iterable[str]) -> list[str]:
    """Split at commas that are neither inside brackets nor part of one of the labels."""
    items, known, chosen = split_list(text), set(labels), []
    while items:
        length = next((n for n in range(len(items), 1, -1) if ", ".join(items[:n]) in known), 1)
        chosen.append(", ".join(items[:length]))
        items = items[length:]
    return chosen


def chosen_methods(preset: Preset, specs: Sequence[str] | None) -> dict[str, str]:
    """Return the preset's methods, or the named ones: by the paper's name, as in the preset, or any other."""
    if not specs:
        return preset.methods
    titles = {spec: title for title, spec in preset.methods.items()}
    return {titles.get(spec, spec): preset.methods.get(spec, spec) for spec in expand_sets(specs)}


@cache
def _common() -> dict[str, Any]:
    return _read(COMMON)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))


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
    fraction: PositiveShare = 1.0
    settings: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        require_allowed(self)
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
