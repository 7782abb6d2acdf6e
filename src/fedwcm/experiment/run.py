"""A run: what its process knows of it, and what its folder holds."""

from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from torch import nn

from fedwcm.config.recipes import RECIPES
from fedwcm.config.schema import SECTIONS, Config, SelectBy
from fedwcm.config.settings import Settings, decisive, to_settings
from fedwcm.core.types import State
from fedwcm.experiment import records
from fedwcm.experiment.folder import ComparisonFolder, RunFolder
from fedwcm.experiment.model_file import read_facts, read_model

DEFAULTS = {key: value for key, value in to_settings(Config()).items() if key.partition(".")[0] in SECTIONS}
IGNORED = ("run.seed", "run.diagnostics")
"""Options in which runs that differ by their seed only may differ."""


class Run:
    """A run over its folder: each file is read when it is first needed, and once.

    Args:
        folder: the run's; None if it is in memory only.
        known: attributes that need not be read, by name: the process that made a run reads nothing of it.
    """

    def __init__(self, folder: RunFolder | None, **known: Any) -> None:
        self._folder = folder
        vars(self).update(known)

    def copy_with(self, **known: Any) -> Self:
        """Return the run with other values of these attributes."""
        other = copy(self)
        vars(other).update(known)
        return other

    @property
    def folder(self) -> RunFolder:
        assert self._folder is not None, "the run is in memory only"
        return self._folder

    @property
    def in_memory(self) -> bool:
        """Whether the run is saved nowhere."""
        return self._folder is None

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def settings(self) -> Settings:
        """The dotted options, as they were written or would be."""
        return self.folder.settings() if "config" not in vars(self) else to_settings(self.config)

    @cached_property
    def config(self) -> Config:
        """All options; the code that a folder names is not trusted."""
        return self.folder.config()

    @cached_property
    def history(self) -> list[records.RoundRecord]:
        """The evaluated rounds so far."""
        return self.folder.metrics(self.summary)

    @cached_property
    def summary(self) -> records.Summary | None:
        """How the run ended; None while it is in progress, or if it was stopped."""
        return self.folder.summary() if self.folder.finished else None

    @cached_property
    def module(self) -> nn.Module | None:
        """The trained model, if this process has it."""
        return None

    @cached_property
    def model(self) -> State:
        """The parameters of the trained model by name."""
        return read_model(self.folder)

    @cached_property
    def partition(self) -> records.PartitionRecord | None:
        """Who holds how many samples of which class."""
        return self.folder.partition()

    @cached_property
    def personalized(self) -> records.PersonalizationRecord | None:
        """The clients before and after they have fine-tuned the model, if they have."""
        return self.folder.personalization()

    @cached_property
    def environment(self) -> records.EnvironmentRecord | None:
        """What made the run, where that is known; of a resumed run, the last process."""
        return next(reversed(self.folder.environments()), None)

    @cached_property
    def index(self) -> records.ComparisonIndex:
        """The comparison that the run is in; without runs if it is in none."""
        return ComparisonFolder.around(self.path).index()

    @cached_property
    def label(self) -> str:
        """The name that a reader sees."""
        return self.index.labels.get(self.path.name) or _title(self.settings)

    @cached_property
    def swept(self) -> tuple[str, ...]:
        """The options that its comparison's grid varied."""
        return self.index.grid or () if self.path.name in self.index.labels else ()

    @property
    def shared_machine(self) -> bool:
        """Whether other runs of its comparison ran at the same time."""
        return self.path.name in self.index.labels and (self.index.jobs or 1) > 1

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, from the partition or the model; empty if the folder has neither."""
        if self.partition is not None:
            return self.partition.classes
        return read_facts(self.folder).classes if self.folder.model_file.exists() else ()

    @property
    def train_counts(self) -> tuple[int, ...]:
        """Training samples of each class, where they are known."""
        if self.summary is not None:
            return self.summary.train_counts
        return () if self.partition is None else self.partition.totals

    @property
    def seed(self) -> object:
        return self.settings.get("run.seed", 0)

    @property
    def data_digest(self) -> str:
        """The digest of the file that the data came from; empty if it is not known."""
        return "" if self.partition is None else self.partition.digest or ""

    @property
    def outcome(self) -> records.Outcome:
        """The headline numbers, those so far for an unfinished run."""
        return self.summary or records.outcome_of(self.history, self.select_by)

    @property
    def kept(self) -> records.RoundRecord | None:
        """The round whose model is kept: the selected one if there is validation data, else the last."""
        if not self.history:
            return None
        return records.selected_record(self.history, self.select_by) or self.history[-1]

    @property
    def select_by(self) -> SelectBy:
        """The metric on the validation data that selects a round."""
        return "accuracy" if self.settings.get("run.select_by") == "accuracy" else "balanced_accuracy"

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def diverged(self) -> str | None:
        """Why the run ended early; None if it did not."""
        return None if self.summary is None else self.summary.diverged

    @cached_property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """The options that affect the result, but for the seed; defaults for those an older version lacked."""
        options = decisive({**DEFAULTS, **self.settings})
        return tuple(sorted((key, str(value)) for key, value in options.items() if key not in IGNORED))


def _title(settings: Settings) -> str:
    """Return what the user called the method; else the recipe that fixes most of the settings, or the method."""
    if "run.name" in settings:
        return str(settings["run.name"])
    fitting = [
        name
        for name, recipe in RECIPES.items()
        if all(settings.get(key) == value for key, value in recipe.settings.items())
    ]
    method = str(settings.get("method.name", "run")).replace(":", ".").rpartition(".")[2]
    return max(fitting, key=lambda name: len(RECIPES[name].settings), default=method)
