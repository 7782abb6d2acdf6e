"""Clients × classes: how a data set is divided, as a picture and in words."""

from pathlib import Path

from fedwcm.core.types import Ints
from fedwcm.report.curves import figure


def draw_division(counts: Ints, classes: tuple[str, ...], title: str, path: Path) -> bool:
    """Draw the samples of each client and class as a picture, dark where there are many."""
    drawn = figure(9, 1.5 + 0.22 * min(len(classes), 40))
    if drawn is None:
        return False
    fig, axes = drawn
    image = axes.imshow(counts.T, aspect="auto", cmap="Blues", interpolation="nearest")
    fig.colorbar(image, ax=axes, label="samples")
    axes.set(xlabel="client", ylabel="class", title=title)
    if len(classes) <= 40:
        axes.set_yticks(range(len(classes)), classes)
    fig.savefig(path, dpi=150)
    return True
