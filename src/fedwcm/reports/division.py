"""One partition of a data set or several, as a picture (clients × classes) and as a table."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwcm.core.types import Ints
from fedwcm.data.partition import PartitionStatistics

ABREAST = 2
"""Panels in a row."""

NAMED_CLASSES = 20
"""Classes up to which each is labelled."""

SIZES = "#555555"
SAMPLES, FAINTEST = "Blues", 0.3
"""One hue from light to dark, for print and colour-blind readers, from below 1 so that 1 is not white."""

COLUMNS = {
    "clients": "clients",
    "size_min": "smallest",
    "size_median": "median",
    "size_max": "largest",
    "share_of_largest_tenth": "in largest 10 %",
    "classes_per_client_median": "classes",
    "distance_mean": "distance",
    "distance_max": "farthest",
}


def draw_divisions(divisions: Mapping[str, Ints], classes: Sequence[str], title: str, path: Path) -> bool:
    """Draw each partition as a panel: the samples of each client and class, and above them the clients' sizes.

    Classes go from the most frequent to the rarest.

    All panels share their scales. The suffix of the path sets the format (png, svg, pdf).

    Returns:
        False, after a message on stderr, if matplotlib is not installed.
    """
    try:
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture was drawn: pip install 'fedwcm[report]' brings matplotlib", file=sys.stderr)
        return False
    abreast = min(len(divisions), ABREAST)
    rows = -(-len(divisions) // abreast)
    tall = 0.22 * min(max(len(classes), 8), 40)
    fig = Figure(figsize=(1.5 + 5.5 * abreast, 0.6 + rows * (1.9 + tall)), layout="constrained")
    fig.suptitle(title)
    axes = fig.subplots(2 * rows, abreast, squeeze=False, height_ratios=[1.0, tall] * rows)
    largest = max(int(counts.sum(axis=1).max()) for counts in divisions.values())
    order = np.argsort(-np.sum([counts.sum(axis=0) for counts in divisions.values()], axis=0), kind="stable")
    names = [classes[index] for index in order]
    scale = LogNorm(FAINTEST, max(2, *(int(counts.max()) for counts in divisions.values())))
    for unused in axes.flat:
        unused.set_axis_off()
    for place, (name, counts) in enumerate(divisions.items()):
        row, column = divmod(place, abreast)
        sizes, cells = axes[2 * row, column], axes[2 * row + 1, column]
        image = _draw_cells(cells, counts[:, order], names, scale)
        sizes.sharex(cells)
        _draw_sizes(sizes, counts, name, largest)
    bar = fig.colorbar(image, ax=axes, label="samples of a class at a client", shrink=0.8, format="{x:g}")
    bar.ax.set_ylim(bottom=1)
    fig.savefig(path, dpi=150)
    return True


def _draw_sizes(axes: Any, counts: Ints, name: str, largest: int) -> None:
    sizes = counts.sum(axis=1)
    axes.set_axis_on()
    axes.bar(range(len(sizes)), sizes, width=0.9, color=SIZES)
    axes.tick_params(labelbottom=False)
    axes.set(title=name, ylabel="samples", ylim=(0, 1.05 * largest))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_cells(axes: Any, counts: Ints, classes: Sequence[str], scale: Any) -> Any:
    present = np.ma.masked_equal(counts.T, 0)
    axes.set_axis_on()
    image = axes.imshow(present, aspect="auto", cmap=SAMPLES, norm=scale, interpolation="nearest")
    axes.set(xlabel="client", ylabel="class, from head to tail")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(classes) <= NAMED_CLASSES:
        axes.set_yticks(range(len(classes)), classes)
    return image


def division_table(divisions: Mapping[str, PartitionStatistics]) -> str:
    """Return one row per partition: sizes, classes per client, distance from the overall class distribution."""
    lines = [["", *COLUMNS.values()]]
    for name, statistics in divisions.items():
        lines.append([name, *(f"{getattr(statistics, key):.4g}" for key in COLUMNS)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )
