"""`fedwcm.study`: methods × data × seeds as a file declares them: tuned, run, and printed as in a paper."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedwcm.api.comparison import compare
from fedwcm.api.comparison_result import Comparison
from fedwcm.config.options import make
from fedwcm.config.settings import load_toml
from fedwcm.core.checks import require
from fedwcm.experiment.files import replace_file
from fedwcm.experiment.folder import slug
from fedwcm.experiment.progress import Progress
from fedwcm.reports.study import study_csv, study_figures, study_latex, study_markdown
from fedwcm.sweeps.plan import grid_lists, seed_list

Options = dict[str, Any]
"""Keywords or dotted names, and their values."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the options of each method are chosen on each data: as many settings for all, by validation data.

    Args:
        seeds: a run of each setting for each; best others than those of the study.
        options: values of options; every combination is a setting.
        own: by the name of a method, its options in place of those; at most as many settings.
    """

    seeds: tuple[int, ...]
    options: dict[str, object] = field(default_factory=dict)
    own: dict[str, object] = field(default_factory=dict)

    def grid(self, method: str) -> Mapping[str, Sequence[object]]:
        """Return the values of each option to try for a method."""
        return grid_lists(_flat(self.own.get(method, self.options)))

    def trials(self, method: str) -> list[Options]:
        """Return the settings to try for a method."""
        grid = self.grid(method)
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study as its file declares it.

    Args:
        title: of the page.
        seeds: a run of each method on each data for each.
        methods: by the name that tables show: as `--methods` takes one, or options with one as `method`.
        data: by the name that tables show: options of the data and their division.
        settings: options of all runs.
        tune: how options are chosen; by default they are not.
        tables: numbers of a run (`table.csv` has them), a table for each.
        figures: numbers of a round, a figure with a panel for each data.
    """

    seeds: tuple[int, ...]
    methods: dict[str, object]
    data: dict[str, object]
    title: str = "Study"
    settings: dict[str, object] = field(default_factory=dict)
    tune: dict[str, object] = field(default_factory=dict)
    tables: tuple[str, ...] = ("balanced_accuracy", "few")
    figures: tuple[str, ...] = ("balanced_accuracy",)

    def __post_init__(self) -> None:
        seed_list(self.seeds)
        for name in ("methods", "data"):
            require(bool(getattr(self, name)), name, {}, "a table with at least one entry")
            slugs = [slug(key) for key in getattr(self, name)]
            require(len({*slugs}) == len(slugs), name, slugs, "names that differ as names of folders")
        if self.tuning is not None:
            budget = len(self.tuning.trials(""))
            for name in self.tuning.own:
                require(name in self.methods, "tune.own", name, f"one of the methods, {', '.join(self.methods)}")
                trials = len(self.tuning.trials(name))
                require(trials <= budget, f"tune.own, settings of {name},", trials, f"at most {budget}, as of all")

    @classmethod
    def read(cls, path: Path) -> "StudyFile":
        """Read a TOML file."""
        values = load_toml(path)
        for key in {"seeds", "methods", "data"} - values.keys():
            raise ValueError(f"{path} has no {key}: a study has seeds, methods and data")
        return make(cls, values, path.name)

    @property
    def tuning(self) -> Tuning | None:
        """How options are chosen; None for not at all."""
        return make(Tuning, self.tune, "tune") if self.tune else None

    def options(self, data: str) -> Options:
        """Return the options that all methods share on one of the data."""
        return {**_flat(self.settings), **_flat(self.data[data])}

    def method(self, name: str) -> Options:
        """Return a method with its own options."""
        value = self.methods[name]
        return {"method": value} if isinstance(value, str) else _flat(value)


@dataclass(frozen=True, eq=False)
class Study:
    """A study that was run.

    Args:
        folder: where it is: `study.md`, `study.tex`, `study.csv`, the figures, a folder for each data.
        comparisons: by the data.
        chosen: by the data and the method, the options that were chosen.
    """

    folder: Path
    comparisons: Mapping[str, Comparison]
    chosen: Mapping[str, Mapping[str, Options]]

    def __repr__(self) -> str:
        return (self.folder / "study.md").read_text(encoding="utf-8")


def study(
    file: str | Path,
    out: str | Path | None = None,
    *,
    jobs: int = 1,
    report: bool = True,
    progress: Callable[[], Progress] | bool | None = None,
) -> Study:
    """Run a study, or what is left of it, and write its tables and figures.

    Args:
        file: a TOML file with `seeds`, `methods`, `data`, and what else docs/studies.md has.
        out: folder of the study; by default beside the file, under its name.
        jobs: runs at a time.
        report: write a page with everything for each data, too.
        progress: as in `fedwcm.compare`.
    """
    path = Path(file)
    declared, folder = StudyFile.read(path), Path(out) if out is not None else path.with_suffix("")
    comparisons, chosen = dict[str, Comparison](), dict[str, Mapping[str, Options]]()
    for data in declared.data:
        shared = {"jobs": jobs, "progress": progress, **declared.options(data)}
        chosen[data] = _tune(declared, data, folder / "tuning" / slug(data), shared)
        methods = {name: {**declared.method(name), **chosen[data].get(name, {})} for name in declared.methods}
        comparisons[data] = compare(methods, declared.seeds, folder / slug(data), report=report, **shared)
    replace_file(folder / "study.toml", path.read_text(encoding="utf-8"))
    _write(declared, folder, comparisons, chosen)
    return Study(folder, comparisons, chosen)


def _tune(declared: StudyFile, data: str, folder: Path, shared: Options) -> dict[str, Options]:
    """Return the options of each method with the best mean balanced accuracy on validation data."""
    tuning, chosen = declared.tuning, dict[str, Options]()
    if tuning is None:
        return chosen
    for name in declared.methods:
        trials, grid = tuning.trials(name), tuning.grid(name)
        runs = compare(
            {name: declared.method(name)}, tuning.seeds, folder / slug(name), grid=grid, report=False, **shared
        ).runs
        values = [[run.summary.val_balanced_accuracy for run in group] for group in runs.values()]
        if any(value is None for group in values for value in group):
            raise ValueError(f"{data} has no validation data to tune on: give val_fraction or val_clients")
        best = int(np.argmax([np.mean([value or 0.0 for value in group]) for group in values]))
        chosen[name] = trials[best]
    return chosen


def _write(
    declared: StudyFile,
    folder: Path,
    comparisons: Mapping[str, Comparison],
    chosen: Mapping[str, Mapping[str, Options]],
) -> None:
    groups = {data: comparison.groups for data, comparison in comparisons.items()}
    tables = declared.tables
    lines = [f"# {declared.title}", "", study_markdown(groups, tables)]
    for data, by_method in chosen.items():
        listed = [
            f"- {name}: " + ", ".join(f"{key} = {value}" for key, value in options.items())
            for name, options in by_method.items()
        ]
        lines += [f"Chosen on validation data, {data}:", "", *listed, ""] if listed else []
    replace_file(folder / "study.md", "\n".join(lines))
    replace_file(folder / "study.tex", study_latex(groups, tables))
    replace_file(folder / "study.csv", study_csv(groups, tables))
    study_figures(groups, declared.figures, folder)


def _flat(table: object, prefix: str = "") -> Options:
    """Return the options of a TOML table: `local.lr = 0.1`, which TOML nests, under its dotted name."""
    require(isinstance(table, Mapping), prefix.rstrip(".") or "the entry", table, "a table of options")
    assert isinstance(table, Mapping)
    flat: Options = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping) and prefix + key != "run.target"
        flat |= _flat(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return flat
