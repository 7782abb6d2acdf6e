"""The presets: what each table and figure of the paper runs, and in which layout it is shown."""

import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from fedwcm.config.options import make
from fedwcm.config.recipes import expand_sets
from fedwcm.config.settings import Settings, overlay, split_list
from fedwcm.core.checks import unknown

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
