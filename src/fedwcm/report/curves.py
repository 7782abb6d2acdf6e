"""Accuracy over rounds, one line a method, with a band of one standard deviation over its seeds."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwcm.sim.folder import Record

STYLES = ("-", "--", "-.", ":")
"""Lines differ by dash as well as by colour, to survive print and colour-blind eyes."""


def draw_curves(histories: Mapping[str, Sequence[Sequence[Record]]], path: Path) -> bool:
    """Draw to a file; False, with a word on stderr, where matplotlib is not installed."""
    figure_and_axes = figure(7, 4)
    if figure_and_axes is None:
        return False
    fig, axes = figure_and_axes
    for number, (label, runs) in enumerate(histories.items()):
        rounds = [record["round"] for record in min(runs, key=len)]
        accuracy = np.array([[r["test_accuracy"] for r in run[: len(rounds)]] for run in runs], dtype=float)
        mean, std = accuracy.mean(axis=0), accuracy.std(axis=0)
        (line,) = axes.plot(rounds, mean, STYLES[number % len(STYLES)], label=label)
        axes.fill_between(rounds, mean - std, mean + std, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel="test accuracy", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    fig.savefig(path, dpi=150)
    return True


def figure(width: float, height: float) -> tuple[Any, Any] | None:
    """A figure with one pair of axes, drawn without a screen; None where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture was drawn: pip install 'fedwcm[report]' brings matplotlib", file=sys.stderr)
        return None
    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.add_subplot()
