"""Read run folders for a report, and group the runs that differ by their seed only."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwcm.config.schema import COMPONENTS
from fedwcm.config.settings import RESULT_NEUTRAL, Settings
from fedwcm.experiment.folder import ComparisonFolder, RunFolder, find_runs
from fedwcm.experiment.records import Summary
from fedwcm.experiment.run import Run

NOT_APPLICABLE = "–"
"""Stands for the value of an option that another comparison's grid varied and this group does not have."""


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """Runs that differ by their seed only, under the name that a reader sees."""

    label: str
    runs: tuple[Run, ...]

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs whose numbers count: those that have finished or, if none has, all as far as they have come."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def summaries(self) -> list[Summary]:
        """How the finished runs ended."""
        return [run.summary for run in self.runs if run.summary is not None]

    @property
    def diverged(self) -> int:
        return sum(run.diverged is not None for run in self.runs)

    @property
    def settings(self) -> Settings:
        return self.runs[0].settings

    @property
    def swept(self) -> dict[str, str]:
        """The values of the options that the comparison's grid varied."""
        return {k: str(self.settings.get(k, "none")) for k in self.runs[0].swept if k not in RESULT_NEUTRAL}

    @property
    def method(self) -> str:
        """The name of the method as it was typed, without swept options."""
        return str(self.settings.get("run.name", self.label)) if self.swept else self.label

    def values_of(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the values of these options; `NOT_APPLICABLE` for one that the method does not have."""
        own = {key: str(value) for key, value in self.settings.items()} | self.swept
        return {key: own.get(key, NOT_APPLICABLE if key.split(".")[0] in COMPONENTS else "none") for key in keys}


def load_runs(folders: Sequence[Path]) -> list[MethodRuns]:
    """Load and group the runs in these folders: a run's, a comparison's, or one that holds several of either."""
    paths = list(dict.fromkeys(path.resolve() for folder in folders for path in _run_paths(folder)))
    indices = {place: ComparisonFolder(place.parent).index() for place in {path.parent for path in paths}}
    return group_runs([load_run(path).copy_with(index=indices[path.parent]) for path in paths])


def load_run(path: Path) -> Run:
    """Return the run in a folder; runs of older versions lack some of its parts."""
    folder = RunFolder(path)
    for file in (folder.config_file, folder.metrics_file):
        if not file.exists():
            raise FileNotFoundError(f"{path} holds no run: there is no {file.name} in it")
    return Run(folder)


def group_runs(runs: Sequence[Run]) -> list[MethodRuns]:
    """Return these runs in groups that differ by their seed only."""
    return _group(_with_class_names(runs))


def _run_paths(folder: Path) -> list[Path]:
    """Return the runs in a folder that have begun; if none has, those that are planned."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    RunFolder(folder).refuse_search()
    paths = list(find_runs(folder))
    if not paths:
        raise FileNotFoundError(f"{folder} holds no run: there is no config.toml in it or in a folder below it")
    return [path for path in paths if RunFolder(path).metrics_file.exists()] or paths


def _with_class_names(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with names for all classes: those of another run on the same data, or numbers."""
    known = {(run.settings.get("data.dataset"), len(run.classes)): run.classes for run in runs if run.classes}

    def name_classes(run: Run) -> Run:
        number = len(run.train_counts)
        numbers = tuple(map(str, range(number)))
        return run.copy_with(classes=known.get((run.settings.get("data.dataset"), number), numbers))

    return [run if run.classes else name_classes(run) for run in runs]


def _group(runs: Iterable[Run]) -> list[MethodRuns]:
    """Return groups in the order of their first run; equal names get the options that differ as a suffix."""
    by_identity: dict[tuple[object, ...], list[Run]] = {}
    for run in _without_repeated(runs):
        by_identity.setdefault((run.label, run.identity, run.data_digest), []).append(run)
    groups = [MethodRuns(members[0].label, tuple(members)) for members in by_identity.values()]
    named = []
    for group in groups:
        namesakes = [other for other in groups if other.label == group.label]
        keys = differing(namesakes)
        marks = [f"{key}={group.settings[key]}" for key in keys if key in group.settings]
        if len({other.runs[0].data_digest for other in namesakes}) > 1:
            marks.append(f"data {group.runs[0].data_digest[:8]}")
        label = f"{group.label} ({', '.join(marks)})" if marks else group.label
        # Where options were swept, rows go by these: what tells two grids apart is one more.
        swept = tuple(dict.fromkeys((*group.runs[0].swept, *keys))) if group.runs[0].swept else ()
        named.append(MethodRuns(label, tuple(run.copy_with(label=label, swept=swept) for run in group.runs)))
    return named


def _without_repeated(runs: Iterable[Run]) -> list[Run]:
    """Drop runs that are the same run again, in another folder: they are no further evidence."""
    all_runs = list(runs)
    kept: dict[tuple[object, ...], Run] = {}
    for run in sorted(all_runs, key=lambda run: not run.finished):
        first = kept.setdefault((run.identity, run.data_digest, str(run.seed)), run)
        if first is not run:
            warnings.warn(f"{run.path} is not counted: {first.path} has the same options and seed", stacklevel=4)
    counted = set(kept.values())
    return [run for run in all_runs if run in counted]


def differing(groups: Sequence[MethodRuns]) -> list[str]:
    """Return the names of the options that affect the result and differ between groups.

    An option of a component is compared only among the components that have it: no two methods share all options.
    """
    settings = [dict(group.runs[0].identity) for group in groups]
    keys = sorted({key for options in settings for key in options})
    return [key for key in keys if len({options.get(key) for options in _knowing(key, settings)}) > 1]


def _knowing(key: str, settings: list[dict[str, str]]) -> list[dict[str, str]]:
    section, _, option = key.partition(".")
    if section not in COMPONENTS or option == "name":
        return settings
    parts = {options.get(f"{section}.name") for options in settings if key in options}
    return [options for options in settings if options.get(f"{section}.name") in parts]
