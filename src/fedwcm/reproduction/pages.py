"""What a preset leaves behind: a table in the paper's layout, its figures, and a report of the runs."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedwcm.experiment.files import replace_file
from fedwcm.experiment.folder import slug
from fedwcm.reports.content import report_content
from fedwcm.reports.figures import Figure
from fedwcm.reports.load import load_runs
from fedwcm.reports.page import page
from fedwcm.reports.paper import draw_figures
from fedwcm.reproduction.figures import draw_beside_paper, figures
from fedwcm.reproduction.presets import Cell, Preset, Scope, chosen_methods, house_settings
from fedwcm.reproduction.store import read_run, unpack
from fedwcm.reproduction.table import Entry, csv_text, entries, led_by_classes, markdown

CURVE_POINTS = 50
OF_PAPER = ("table", "figure", "appendix")
"""How the names of presets begin that are of the paper."""

NOMINAL = "fedcm-nominal"

WRITTEN_BY = "Written by `"
"""Before the command of a page."""


@dataclass(frozen=True)
class Pages:
    """The files that were written; None for what the runs did not suffice for."""

    table: str
    markdown: Path
    csv: Path | None = None
    report: Path | None = None
    figures: Sequence[Path] = ()


def write_pages(preset: Preset, scope: Scope, folders: Sequence[tuple[Cell, Path | None]], folder: Path) -> Pages:
    """Write `NAME.md`, `NAME.csv`, `NAME-*.png` and `NAME.html`."""
    cells = entries(preset, [(cell, None if path is None else read_run(path)) for cell, path in folders])
    stem = _stem(preset, scope)
    paths = [path for _, path in folders if path is not None]
    drawings = [replace(figure, key=f"{stem}-{figure.key}") for figure in figures(preset, cells)]
    drawn, shown = _draw(drawings, folder), []
    if draw_beside_paper(cells, folder / f"{stem}-paper.png"):
        shown = [f"![Ours beside the paper's]({stem}-paper.png)", ""]
    report = _report(preset, drawings, paths, folder / f"{stem}.html") if paths else None
    table = markdown(preset, cells)
    _warn_of_another(folder / f"{stem}.md", command_line(preset, scope))
    replace_file(folder / f"{stem}.csv", csv_text(cells))
    replace_file(folder / f"{stem}.md", _text(preset, scope, cells, [*shown, table], _show(drawings, drawn)))
    return Pages(table, folder / f"{stem}.md", folder / f"{stem}.csv", report, drawn)


def _stem(preset: Preset, scope: Scope) -> str:
    """Return the name of the files: the preset's, and what of its scope is not the paper's own."""
    parts = [preset.name, *scope.dataset, *(f"{axis}-{'-'.join(labels)}" for axis, labels in scope.only.items())]
    parts += [f"{key}-{value}" for key, value in (scope.settings or {}).items()]
    if scope.fraction < 1:
        parts.append(f"{scope.fraction:g}")
    return slug("-".join(parts))


def _warn_of_another(page: Path, command: str) -> None:
    """Warn if the page that is there was made of other methods or seeds, which are not in its name."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before = text.partition(WRITTEN_BY)[2].partition("`")[0]
    if before and before != command:
        warnings.warn(f"{page} was written by {before}; it is replaced", stacklevel=4)


def _text(preset: Preset, scope: Scope, cells: Sequence[Entry], table: Sequence[str], shown: Sequence[str]) -> str:
    done = sum(len(entry.runs) for entry in cells)
    wanted = sum(entry.wanted for entry in cells)
    beside = any(entry.paper is not None for entry in cells)
    led = led_by_classes(cells)
    numbers = (
        "the mean over the classes (balanced accuracy), and the test accuracy" if led else "final test accuracy"
    )
    numbers = "ours / the paper's, our best at a place in bold" if beside else numbers
    several = any(len(entry.measured) > 1 for entry in cells)
    spread = "; ± is the standard deviation over the seeds" if several else ""
    lines = [
        f"# {_title(preset, scope)}",
        "",
        f"{WRITTEN_BY}{command_line(preset, scope)}`: {done} of {wanted} runs done.",
        "",
        f"Cells: {numbers}{spread}{_nominal(preset, scope)}.",
        "",
    ]
    if changes := _changes(preset, scope):
        limits = " The differences are therefore no test of the paper's numbers." if beside else ""
        whose = "paper" if preset.name.startswith(OF_PAPER) else "preset"
        lines += [f"**Not as in the {whose}: {', '.join(changes)}**.{limits}", ""]
    if any(entry.unbalanced for entry in cells):
        place = "first" if led else "beside the accuracy"
        lines += [f"The test set is unbalanced, so the mean over its classes (balanced) stands {place}.", ""]
    lines += [*table, "", *shown]
    house = {key: value for key, value in house_settings().items() if key not in preset.settings}
    lines += [f"Settings that the paper leaves out: {_options(house)}.", ""]
    return "\n".join(lines)


def _nominal(preset: Preset, scope: Scope) -> str:
    """Say which FedCM this is, where its name does not tell it from the exact one."""
    untold = chosen_methods(preset, scope.methods).get("FedCM") == NOMINAL
    return f"; FedCM divides by E·n/b (`{NOMINAL}`)" if untold else ""


def _title(preset: Preset, scope: Scope) -> str:
    """Return the preset's title, and which part of it this is."""
    parts = [*scope.dataset, *(f"{axis} {', '.join(labels)}" for axis, labels in scope.only.items())]
    parts += [str(value) for key, value in (scope.settings or {}).items() if key == "model.name"]
    return f"{preset.title} (here: {'; '.join(parts)})" if parts else preset.title


def _changes(preset: Preset, scope: Scope) -> list[str]:
    """Say in what the runs differ from those of the preset."""
    others = [name for name in scope.dataset if name not in preset.datasets]
    whole = "beside" if len(others) < len(scope.dataset) else "instead of"
    changes = [f"{', '.join(others)} {whole} {', '.join(preset.datasets)}"] if others else []
    changes += [f"{100 * scope.fraction:g} % of the rounds"] if scope.fraction < 1 else []
    return changes + ([_options(scope.settings)] if scope.settings else [])


def command_line(preset: Preset, scope: Scope) -> str:
    """Return the command that makes the page."""
    return " ".join(["fedwcm reproduce", preset.name, *command_words(scope)])


def command_words(scope: Scope) -> list[str]:
    """Return the options of the command that makes a page."""
    words = [f"--dataset {','.join(scope.dataset)}"] if scope.dataset else []
    words += [f'--methods "{",".join(scope.methods)}"'] if scope.methods else []
    words += [f"--seeds {','.join(map(str, scope.seeds))}"] if scope.seeds else []
    words += [_quote("--only ", f"{axis}={','.join(labels)}") for axis, labels in scope.only.items()]
    words += [f"--fraction {scope.fraction:g}"] if scope.fraction < 1 else []
    return words + [f"--set {key}={value}" for key, value in (scope.settings or {}).items()]


def _quote(option: str, value: str) -> str:
    return option + (f'"{value}"' if " " in value else value)


def _options(settings: Mapping[str, object]) -> str:
    return ", ".join(f"`{key}` {value}" for key, value in settings.items())


def _draw(figures: Sequence[Figure], folder: Path) -> list[Path]:
    if not figures:
        return []
    return [path for path in draw_figures(figures, folder, {}) if path.suffix == ".png"]


def _show(figures: Sequence[Figure], drawn: Sequence[Path]) -> list[str]:
    """Return the figures in Markdown, each with its caption."""
    lines = []
    for figure, path in zip(figures, drawn, strict=True):
        lines += [f"![{figure.title}]({path.name})", "", f"*{figure.caption}*", ""]
    return lines


def _report(preset: Preset, first: Sequence[Figure], paths: Sequence[Path], path: Path) -> Path:
    """Return the usual report of these runs, with the paper's figure first."""
    with unpack(paths) as folders:
        content = report_content(load_runs(folders), CURVE_POINTS)
    content = replace(content, title=preset.title, figures=[*first, *content.figures])
    replace_file(path, page(content))
    return path
