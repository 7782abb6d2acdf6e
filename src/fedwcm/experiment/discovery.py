"""Find the runs in a folder and below it. Nothing here imports torch."""

import os
from pathlib import Path

from fedwcm.core.checks import shortened
from fedwcm.experiment.comparison_folder import ComparisonFolder
from fedwcm.experiment.folder import RunFolder
from fedwcm.utils.json_record import RecordError

DEPTH = 4
"""Levels below the given folder that are searched: a folder of comparisons has runs three levels down."""

LISTED = 5
"""Runs below a folder that a hint names."""


def find_runs(folder: Path, *, tolerant: bool = False) -> dict[Path, str]:
    """The runs of a folder, each with a title: a comparison's planned runs, the folder itself, or any below.

    Args:
        folder: where to look.
        tolerant: take a comparison whose index cannot be read for one without runs, as it may be half-written.
    """
    if ComparisonFolder(folder).index_file.exists():
        return _titles(ComparisonFolder(folder), tolerant)
    if RunFolder(folder).holds_run:
        return {folder: folder.resolve().name}
    found: dict[Path, str] = {}
    for name, below, _ in os.walk(folder):
        here = Path(name)
        comparison = ComparisonFolder(here)
        if comparison.index_file.exists():
            found |= _titles(comparison, tolerant)
            below[:] = [name for name in below if name != comparison.runs.name]
        if RunFolder(here).holds_run:
            found[here] = str(here.relative_to(folder))
            below.clear()
        below.sort()
        if len(here.relative_to(folder).parts) >= DEPTH:
            below.clear()
    return found


def runs_below(folder: Path) -> str:
    """A hint for an error: the runs below a folder that was taken for one; empty if there are none."""
    below = [found for found in find_runs(folder, tolerant=True) if found != folder]
    return f"; there are runs below it: {shortened(below, LISTED)}" if below else ""


def _titles(comparison: ComparisonFolder, tolerant: bool) -> dict[Path, str]:
    try:
        return comparison.titles()
    except RecordError:
        if tolerant:
            return {}
        raise
