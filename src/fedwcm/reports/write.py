"""Write a report from run folders."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from fedwcm.core.checks import require
from fedwcm.experiment.files import replace_file
from fedwcm.experiment.folder import REPORT
from fedwcm.experiment.run import Run
from fedwcm.reports.content import ReportContent, report_content
from fedwcm.reports.load import MethodRuns, group_runs, load_runs
from fedwcm.reports.page import page

MOST_BYTES = 2_000_000
"""Size limit of a page, so that it can be mailed and opened on a phone."""

CURVE_POINTS = (200, 100, 50, 25)
"""Points per curve, tried in turn until the page is small enough."""


def report(
    folders: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    figures: str | Path | None = None,
    target: float | None = None,
) -> Path:
    """Write one self-contained page about one run or several, and return its path.

    Args:
        folders: folders of runs or comparisons, or folders that hold several of either; runs that differ by their
            seed only become one line with a band.
        out: the file; by default `report.html` in the folder, or in the working directory for several.
        figures: a folder for the same figures as PDF, SVG and PNG; needs the extra `fedwcm[report]`.
        target: the accuracy for which a comparison shows the first round, until the reader chooses another.
    """
    require(target is None or 0 < target <= 1, "target", target, "in (0, 1]")
    paths = [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    if not paths:
        raise ValueError("folders = [] is not allowed: a report needs at least one run")
    path = Path(out) if out is not None else (paths[0] if len(paths) == 1 else Path()) / REPORT
    content = _write(load_runs(paths), path, target)
    if figures is not None:
        from fedwcm.reports.paper import draw_figures

        draw_figures(content.figures, Path(figures), {name: content.styles[name] for name in content.best})
    return path


def _write(groups: Sequence[MethodRuns], path: Path, target: float | None = None) -> ReportContent:
    """Write the page about these runs, with as many points of its curves as there is room for."""
    for limit in CURVE_POINTS:
        content = report_content(groups, limit, target)
        text = page(content).encode()
        if len(text) < MOST_BYTES:
            break
    replace_file(path, text)
    return content


def report_or_warn(folder: Path, runs: Sequence[Run]) -> Path | None:
    """Write the report of a finished run or comparison; a failure is only a warning, as the results are there."""
    try:
        _write(group_runs(runs), folder / REPORT)
        return folder / REPORT
    except Exception as error:
        warnings.warn(f"the report of {folder} was not written: {type(error).__name__}: {error}", stacklevel=2)
        return None
