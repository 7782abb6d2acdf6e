"""Read run folders for a report, and group the runs that differ by their seed only."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedwcm.config.recipes import RECIPES
from fedwcm.config.schema import COMPONENTS, SECTIONS, Config, SelectBy
from fedwcm.config.settings import Settings, decisive, to_settings
from fedwcm.experiment.comparison_folder import ComparisonFolder
from fedwcm.experiment.discovery import find_runs
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.model_file import read_facts
from fedwcm.experiment.records import (
    EnvironmentRecord,
    Outcome,
    PartitionRecord,
    PersonalizationRecord,
    RoundRecord,
    Summary,
    outcome_of,
    selected_record,
)

DEFAULTS = {key: value for key, value in to_settings(Config()).items() if key.partition(".")[0] in SECTIONS}
IGNORED = ("run.seed", "run.diagnostics")
"""Options in which runs of one group may differ."""


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """What a run folder holds. `summary` is None while the run is in progress, or if it was stopped."""

    path: Path
    label: str
    settings: Settings
    history: list[RoundRecord]
    summary: Summary | None
    classes: tuple[str, ...]
    train_counts: tuple[int, ...]
    split: PartitionRecord | None
    personalized: PersonalizationRecord | None = None
    """Its clients before and after they have fine-tuned the model, if they have."""
    swept: tuple[str, ...] = ()
    """The options that its comparison's grid varied."""
    environment: EnvironmentRecord | None = None
    """What made it, where that is known; of a resumed run, the last process."""
    shared_machine: bool = False
    """Whether other runs of its comparison ran at the same time."""

    @property
    def seed(self) -> object:
        return self.settings.get("run.seed", 0)

    @property
    def data_digest(self) -> str:
        """That of the file that the data came from; empty if it is not known."""
        return "" if self.split is None else self.split.digest or ""

    @property
    def outcome(self) -> Outcome:
        """The headline numbers, those so far for an unfinished run."""
        return self.summary or outcome_of(self.history, self.select_by)

    @property
    def kept(self) -> RoundRecord | None:
        """The round whose model is kept: the selected one if there is validation data, else the last."""
        if not self.history:
            return None
        return selected_record(self.history, self.select_by) or self.history[-1]

    @property
    def select_by(self) -> SelectBy:
        """The metric on the validation data that selects a round."""
        named = self.settings.get("run.select_by", "accuracy")  # older versions had no other
        return "balanced_accuracy" if named == "balanced_accuracy" else "accuracy"

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def diverged(self) -> str | None:
        """Why the run ended early; None if it did not."""
        return None if self.summary is None else self.summary.diverged

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """The options that affect the result, but for the seed; defaults for those an older version lacked."""
        options = decisive({**DEFAULTS, **self.settings})
        return tuple(sorted((key, str(value)) for key, value in options.items() if key not in IGNORED))


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """Runs that differ by their seed only, under the name that a reader sees."""

    label: str
    runs: tuple[LoadedRun, ...]

    @property
    def counted(self) -> tuple[LoadedRun, ...]:
        """The runs whose numbers count: those that have finished or, if none has, all as far as they have come."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def diverged(self) -> int:
        return sum(run.diverged is not None for run in self.runs)

    @property
    def settings(self) -> Settings:
        return self.runs[0].settings


def load_runs(folders: Sequence[Path]) -> list[MethodRuns]:
    """The runs in these folders, grouped. A folder may be a run's, a comparison's, or hold several of either."""
    paths = list(dict.fromkeys(path.resolve() for folder in folders for path in _run_paths(folder)))
    return _grouped(_with_class_names([load_run(path) for path in paths]))


def load_run(path: Path) -> LoadedRun:
    """The run in a folder; runs of older versions lack some of its parts."""
    folder = RunFolder(path)
    for file in (folder.config_file, folder.metrics_file):
        if not file.exists():
            raise FileNotFoundError(f"{path} holds no run: there is no {file.name} in it")
    settings, split = folder.settings(), folder.partition()
    summary = folder.summary() if folder.finished else None
    index = ComparisonFolder.around(path).index()
    member = path.name in index.labels
    return LoadedRun(
        path=path,
        label=index.labels[path.name] if member else _title(settings),
        settings=settings,
        history=folder.metrics(summary),
        summary=summary,
        classes=_classes(folder, split),
        train_counts=summary.train_counts if summary else split.totals if split else (),
        split=split,
        personalized=folder.personalized(),
        swept=index.grid or () if member else (),
        environment=next(reversed(folder.environments()), None),
        shared_machine=member and (index.jobs or 1) > 1,
    )


def _run_paths(folder: Path) -> list[Path]:
    """The runs in a folder that have begun; if none has, those that are planned."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    RunFolder(folder).refuse_search()
    found = list(find_runs(folder))
    if not found:
        raise FileNotFoundError(f"{folder} holds no run: there is no config.toml in it or in a folder below it")
    return [path for path in found if RunFolder(path).metrics_file.exists()] or found


def _title(settings: Settings) -> str:
    """What the user called the method; else the recipe that fixes the most of these settings, or the method."""
    if "run.name" in settings:
        return str(settings["run.name"])
    fitting = [
        name
        for name, recipe in RECIPES.items()
        if all(settings.get(key) == value for key, value in recipe.settings.items())
    ]
    method = str(settings.get("method.name", "run")).replace(":", ".").rpartition(".")[2]
    return max(fitting, key=lambda name: len(RECIPES[name].settings), default=method)


def _classes(folder: RunFolder, split: PartitionRecord | None) -> tuple[str, ...]:
    """The names of the classes, from the split or the model; empty if the folder has neither."""
    if split is not None:
        return split.classes
    return read_facts(folder).classes if folder.model_file.exists() else ()


def _with_class_names(runs: list[LoadedRun]) -> list[LoadedRun]:
    """The runs with names for all classes: those of another run on the same data, or numbers."""
    known = {(run.settings.get("data.dataset"), len(run.classes)): run.classes for run in runs if run.classes}

    def named(run: LoadedRun) -> LoadedRun:
        number = len(run.train_counts)
        numbers = tuple(map(str, range(number)))
        return replace(run, classes=known.get((run.settings.get("data.dataset"), number), numbers))

    return [run if run.classes else named(run) for run in runs]


def _grouped(runs: Iterable[LoadedRun]) -> list[MethodRuns]:
    """Groups in the order of their first run; equal names get the options that differ as a suffix."""
    by_identity: dict[tuple[object, ...], list[LoadedRun]] = {}
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
        named.append(MethodRuns(label, tuple(replace(run, label=label, swept=swept) for run in group.runs)))
    return named


def _without_repeated(runs: Iterable[LoadedRun]) -> list[LoadedRun]:
    """The runs without those that are the same run again, in another folder: they are no further evidence."""
    all_runs = list(runs)
    kept: dict[tuple[object, ...], LoadedRun] = {}
    for run in sorted(all_runs, key=lambda run: not run.finished):
        first = kept.setdefault((run.identity, run.data_digest, str(run.seed)), run)
        if first is not run:
            warnings.warn(f"{run.path} is not counted: {first.path} has the same options and seed", stacklevel=4)
    return [run for run in all_runs if run in kept.values()]


def differing(groups: Sequence[MethodRuns]) -> list[str]:
    """The names of the options that affect the result and differ between groups.

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
