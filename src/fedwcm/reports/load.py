"""Read run folders for a report: which there are, what each holds, and which differ by their seed only."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import safe_open

from fedwcm.config.recipes import RECIPES
from fedwcm.config.schema import COMPONENTS, INCIDENTAL, SECTIONS, Config, Settings, read_toml, to_settings
from fedwcm.runs.folder import Record, RunFolder
from fedwcm.runs.runner import outcome

DEPTH = 3
"""How many folders below a given one runs are looked for: a comparison, or a few of them, has two."""


DEFAULTS = {key: value for key, value in to_settings(Config()).items() if key.partition(".")[0] in SECTIONS}
IGNORED = {"run.seed", "run.diagnostics", *INCIDENTAL}
"""Options in which runs may differ and still be the same but for their seed."""


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """What a run folder says. `finished` is False while the run goes on, or where it was stopped."""

    path: Path
    label: str
    settings: Settings
    history: list[Record]
    summary: Record
    finished: bool
    classes: tuple[str, ...]
    train_counts: tuple[int, ...]
    split: Record | None

    @property
    def seed(self) -> object:
        return self.settings.get("run.seed", 0)

    @property
    def diverged(self) -> str | None:
        """Why the run ended early; None if it did not."""
        reason = self.summary.get("diverged")
        return None if reason is None else str(reason)

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """What matters for the result but for the seed; an option that an older version lacked has its default."""
        options = {**DEFAULTS, **self.settings}
        return tuple(sorted((key, str(value)) for key, value in options.items() if key not in IGNORED))


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """Runs that differ by their seed only, under the name that a reader sees."""

    label: str
    runs: tuple[LoadedRun, ...]

    @property
    def diverged(self) -> int:
        return sum(run.diverged is not None for run in self.runs)

    @property
    def settings(self) -> Settings:
        return self.runs[0].settings


def gather(folders: Sequence[Path]) -> list[MethodRuns]:
    """The runs in these folders, grouped: each may be a run's, a comparison's, or hold several of either."""
    paths = list(dict.fromkeys(path.resolve() for folder in folders for path in _run_folders(folder)))
    return _grouped(_with_class_names([read_run(path) for path in paths]))


def read_run(path: Path) -> LoadedRun:
    """What the folder of one run says; older runs lack some of it."""
    folder = RunFolder(path)
    if not folder.holds_run:
        raise FileNotFoundError(f"{path} holds no run: there is no config.toml in it")
    if not (path / "metrics.jsonl").exists():
        raise FileNotFoundError(f"{path} holds no metrics: there is no metrics.jsonl in it")
    settings, history = read_toml(path / "config.toml"), folder.metrics()
    if any("round" not in record for record in history):
        raise ValueError(f"{path / 'metrics.jsonl'} is not a run's: a record has no 'round'")
    summary = folder.summary() if folder.finished else outcome(history)
    split = folder.split()
    counts = summary.get("train_counts") or (split or {}).get("totals") or []
    assert isinstance(counts, list)
    return LoadedRun(
        path=path,
        label=comparison_labels(path.parent.parent).get(path.name) or _title(settings),
        settings=settings,
        history=history,
        summary=summary,
        finished=folder.finished,
        classes=_classes(path, split),
        train_counts=tuple(counts),
        split=split,
    )


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    if labels := comparison_labels(folder):
        planned = [folder / "runs" / name for name in labels]  # written before the first run begins
        return [path for path in planned if (path / "metrics.jsonl").exists()]
    for depth in range(DEPTH + 1):
        found = sorted(path.parent for path in folder.glob("*/" * depth + "config.toml"))
        if found:
            begun = [path for path in found if (path / "metrics.jsonl").exists()]
            return begun or found
    raise FileNotFoundError(f"{folder} holds no run: there is no config.toml in it or in a folder below it")


def comparison_labels(folder: Path) -> dict[str, str]:
    """The runs of a comparison in the order in which it was asked for, and their names; none elsewhere."""
    index = folder / "comparison.json"
    labels: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["labels"] if index.exists() else {}
    return labels


def _title(settings: Settings) -> str:
    """What the user called the method; else the recipe that says most of these settings, or the method's name."""
    if "run.name" in settings:
        return str(settings["run.name"])
    fitting = [
        name
        for name, recipe in RECIPES.items()
        if all(settings.get(key) == value for key, value in recipe.settings.items())
    ]
    method = str(settings.get("method.name", "run")).replace(":", ".").rpartition(".")[2]
    return max(fitting, key=lambda name: len(RECIPES[name].settings), default=method)


def _classes(path: Path, split: Record | None) -> tuple[str, ...]:
    """The names of the classes, from the split or the model; none where neither is there."""
    if split is not None:
        named = split["classes"]
        assert isinstance(named, list)
        return tuple(map(str, named))
    model = path / "model.safetensors"
    if model.exists():
        with safe_open(model, framework="numpy") as file:
            return tuple(json.loads(file.metadata()["fedwcm"])["classes"])
    return ()


def _with_class_names(runs: list[LoadedRun]) -> list[LoadedRun]:
    """The runs, classes without a name called as in another run on the same data, else by number."""
    known = {(run.settings.get("data.dataset"), len(run.classes)): run.classes for run in runs if run.classes}

    def named(run: LoadedRun) -> LoadedRun:
        number = len(run.train_counts)
        numbers = tuple(map(str, range(number)))
        return replace(run, classes=known.get((run.settings.get("data.dataset"), number), numbers))

    return [run if run.classes else named(run) for run in runs]


def _grouped(runs: Iterable[LoadedRun]) -> list[MethodRuns]:
    """Groups in the order of their first run; equal names are told apart by the options that differ."""
    by_identity: dict[tuple[object, ...], list[LoadedRun]] = {}
    for run in runs:
        by_identity.setdefault((run.label, run.identity), []).append(run)
    groups = [MethodRuns(members[0].label, tuple(members)) for members in by_identity.values()]
    named = []
    for group in groups:
        namesakes = [other for other in groups if other.label == group.label]
        marks = ", ".join(f"{key}={group.settings[key]}" for key in differing(namesakes) if key in group.settings)
        label = f"{group.label} ({marks})" if marks else group.label
        named.append(MethodRuns(label, tuple(replace(run, label=label) for run in group.runs)))
    return named


def differing(groups: Sequence[MethodRuns]) -> list[str]:
    """The options that matter and are not the same in all groups, by name.

    A part's option counts only among the parts that know it: no two methods have all options in common.
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
