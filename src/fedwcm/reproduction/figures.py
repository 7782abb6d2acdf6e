"""The paper's figures from our runs, as the data that `fedwcm.reports` draws; and ours beside its numbers."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedwcm.experiment.folder import slug
from fedwcm.experiment.records import RoundRecord
from fedwcm.reports.figures import Bar, Bars, Curve, Curves, Figure
from fedwcm.reports.paper import STYLE
from fedwcm.reports.styles import LIGHT
from fedwcm.reproduction.presets import Preset
from fedwcm.reproduction.store import StoredRun
from fedwcm.reproduction.table import Entry, named_value, place_of

NAMES = {
    "test_accuracy": "test accuracy",
    "train_set_accuracy": "accuracy on all training samples",
    "concentration": "neuron concentration",
}
LEFT_OUT = " Runs that diverged are left out."
COLLAPSE = 2 / 3
"""A method has collapsed at this share of the best accuracy of its place."""


def figures(preset: Preset, cells: Sequence[Entry]) -> list[Figure]:
    """Return the figures of a preset; cells without an evaluated round are left out."""
    tested = [replace(entry, runs=[run for run in entry.runs if run.history]) for entry in cells]
    present = [entry for entry in tested if entry.runs]
    if not present:
        return []
    if preset.figure.kind == "classes":
        return [_by_class(preset, present)]
    if preset.figure.kind == "axis":
        return [_over_axis(preset, present)]
    return [figure for metric in preset.figure.metrics for figure in _over_rounds(preset, present, metric)]


def _over_rounds(preset: Preset, cells: Sequence[Entry], metric: str) -> list[Figure]:
    if metric == "concentration_layers":
        return [_layers(preset, entry, _title(entry, cells)) for entry in cells]
    name = NAMES.get(metric, metric)
    curves = [
        _mean_curve(_title(entry, cells), entry.runs, lambda record: record.number(metric)) for entry in cells
    ]
    return [_curves(preset, metric, name, name, curves)]


def _layers(preset: Preset, entry: Entry, title: str) -> Figure:
    layers = entry.runs[0].history[0].extra.get("concentration_layers")
    names = list(layers) if isinstance(layers, Mapping) else []
    curves = [_mean_curve(name, entry.runs, partial(_of_layer, name)) for name in names]
    name = NAMES["concentration"]
    return _curves(preset, f"layers-{slug(title)}", name, f"{title}: {name} by layer", curves)


def _curves(preset: Preset, key: str, y_label: str, caption: str, curves: Sequence[Curve]) -> Curves:
    return Curves(key=key, title=preset.title, caption=caption, curves=curves, y_label=y_label, wide=True)


def _mean_curve(name: str, runs: Sequence[StoredRun], value: Callable[[RoundRecord], float | None]) -> Curve:
    """Return the mean over the seeds at the rounds that all of them reached."""
    shortest = min(runs, key=lambda run: len(run.history))
    x = [record.round for record in shortest.history]
    table = [[value(record) for record in run.history[: len(x)]] for run in runs]
    columns = [[number for number in column if number is not None] for column in zip(*table, strict=True)]
    return Curve(name, x, [float(np.mean(column)) if column else None for column in columns])


def _by_class(preset: Preset, cells: Sequence[Entry]) -> Figure:
    classes = len(cells[0].runs[0].summary.train_counts)
    bars = []
    for entry in cells:
        rows = [run.history[-1].per_class_accuracy or (0.0,) * classes for run in entry.runs]
        bars.append(Bar(_title(entry, cells), np.mean(np.array(rows, dtype=float), axis=0).tolist()))
    labels = [str(number) for number in range(classes)]
    caption = "Class 0 is the most frequent, the last the rarest."
    return Bars(
        key="classes",
        title=preset.title,
        caption=caption,
        categories=labels,
        bars=bars,
        x_label="class",
        y_label="test accuracy",
        bounds=(0.0, 1.0),
        wide=True,
    )


def _over_axis(preset: Preset, cells: Sequence[Entry]) -> Figure:
    axis = preset.figure.axis
    curves = []
    for method in dict.fromkeys(entry.point["method"] for entry in cells):
        line = [entry for entry in cells if entry.point["method"] == method]
        curves.append(Curve(method, [float(e.point[axis]) for e in line], [e.ours for e in line]))
    return Curves(
        key=axis,
        title=preset.title,
        caption=f"Final test accuracy over {axis}." + (LEFT_OUT if any(e.diverged for e in cells) else ""),
        curves=curves,
        y_label="test accuracy",
        x_label=axis,
        bounds=(0.0, 1.0),
    )


def _title(entry: Entry, cells: Sequence[Entry]) -> str:
    """Return what tells this line from the others."""
    telling = [axis for axis in entry.point if len({other.point[axis] for other in cells}) > 1]
    return ", ".join(entry.point[axis] if axis == "method" else f"{axis} {entry.point[axis]}" for axis in telling)


def _of_layer(layer: str, record: RoundRecord) -> float | None:
    return record.number("concentration_layers", layer)


def draw_beside_paper(cells: Sequence[Entry], path: Path) -> bool:
    """Draw our value of each cell and the paper's on one line, a panel per method; false if no cell has both.

    A cross marks a collapse: at most two thirds of the best at that place, of the same source.
    """
    pairs = {
        (_place_name(entry), entry.point["method"]): (entry.paper, entry.ours)
        for entry in cells
        if entry.ours is not None and entry.paper is not None
    }
    if not pairs:
        return False
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    places, methods = (list(dict.fromkeys(key[i] for key in pairs)) for i in (0, 1))
    best = {place: [max(p[i] for key, p in pairs.items() if key[0] == place) for i in (0, 1)] for place in places}
    size = (1.2 + 1.25 * len(methods), 1.1 + 0.22 * len(places))
    with mpl.rc_context(cast(Any, STYLE)):
        figure, (panels,) = plt.subplots(
            1, len(methods), sharex=True, sharey=True, squeeze=False, figsize=size, layout="constrained"
        )
        for (place, method), values in pairs.items():
            axes, row = panels[methods.index(method)], places.index(place)
            axes.plot(values, [row, row], color="0.75", lw=1, zorder=1)
            for value, highest, colour in zip(values, best[place], ("0.45", LIGHT[1]), strict=True):
                axes.plot(value, row, "x" if value <= COLLAPSE * highest else "o", color=colour, ms=5, zorder=2)
        for axes, method in zip(panels, methods, strict=True):
            axes.set_title(textwrap.fill(method, 14), fontsize="small")
        panels[0].set_yticks(range(len(places)), places)
        panels[0].invert_yaxis()
        figure.supxlabel("accuracy (grey: the paper's, colour: ours, x: collapsed)", fontsize="small")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        plt.close(figure)
    return True


def _place_name(entry: Entry) -> str:
    return ", ".join(named_value(axis, value) for axis, value in place_of(entry) if axis != "dataset")
