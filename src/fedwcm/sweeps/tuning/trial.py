"""A trial: one setting of a method, run with every seed, and its result for the study."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from optuna.trial import Trial, TrialState

from fedwcm.config.schema import Config, SelectBy
from fedwcm.config.settings import Settings, from_settings, overlay
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.components import Components, unused_options
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.records import VALIDATION_METRICS, RoundRecord
from fedwcm.experiment.start import start
from fedwcm.sweeps.tuning.study import MethodStudy, Space

Report = Callable[[float, int], object]
"""Takes a trial's best validation metric so far, and how many rounds it took."""


@dataclass(frozen=True)
class Plan:
    """The search of one method: its settings, and the options to vary."""

    name: str
    settings: Settings
    space: Space

    @cached_property
    def config(self) -> Config:
        return from_settings(self.settings)

    def configs(self, params: Settings, seeds: Sequence[int]) -> list[Config]:
        """Return the runs of a trial, without searched options that the others turn off."""
        whole = self._vary(params, 0)
        unused = unused_options(whole, Components.of(whole))
        live = {key: value for key, value in params.items() if key not in unused}
        return [self._vary(live, seed) for seed in seeds]

    def _vary(self, params: Settings, seed: int) -> Config:
        named = {"run.seed": seed, "run.name": self.name}
        return from_settings(overlay(overlay(self.settings, params), named))


@dataclass(frozen=True, eq=False)
class Search:
    """The search of all methods: the seeds of each trial, and the number of trials of each method.

    `say` is called with a sentence on how each trial ended.
    """

    plans: Sequence[Plan]
    studies: Mapping[str, MethodStudy]
    seeds: Sequence[int]
    trials: int
    say: Callable[[str], object]


TEST_METRICS: dict[SelectBy, str] = {"accuracy": "test_accuracy", "balanced_accuracy": "balanced_accuracy"}
"""The metrics of `run.select_by`, on the test data."""


@dataclass(frozen=True)
class TrialResult:
    """The metric by which runs select a round (`run.select_by`), on the validation and the test data.

    `accuracies` has it of a trial's runs; None if one of them diverged.
    """

    accuracies: tuple[list[float], list[float]] | None
    select_by: SelectBy = "balanced_accuracy"

    def tell(self, study: MethodStudy, trial: Trial) -> str:
        """Tell the study, and return the result in words."""
        if self.accuracies is None:
            trial.set_user_attr("diverged", True)
            study.study.tell(trial, 0.0)
            return "diverged"
        validated, tested = self.accuracies
        trial.set_user_attr(VALIDATION_METRICS[self.select_by], validated)
        trial.set_user_attr(TEST_METRICS[self.select_by], tested)
        study.study.tell(trial, float(np.mean(validated)))
        return f"validation {self.select_by.replace('_', ' ')} {np.mean(validated):.4f}"


def tell_pruned(study: MethodStudy, trial: Trial) -> str:
    """Tell the study that a trial was ended early, and return that in words."""
    study.study.tell(trial, state=TrialState.PRUNED)
    return "pruned"


def line(plan: Plan, trial: Trial, message: str) -> str:
    """Return the line about a trial that the user sees."""
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in trial.params.items()}
    options = ", ".join(f"{key}={value}" for key, value in shown.items())
    return f"{plan.name}, trial {trial.number + 1}: {options}: {message}"


def run_trial(configs: Sequence[Config], report: Report) -> TrialResult:
    """Run a trial's seeds one after the other; an exception of `report` ends them."""
    validated: list[float] = []
    tested: list[float] = []
    select_by = configs[0].run.select_by
    key = VALIDATION_METRICS[select_by]
    for config in configs:
        watcher = _Watcher(report, key, len(validated) * config.run.rounds)
        try:
            outcome = start(config, None, resume=False, progress=watcher).outcome
        except DivergedError:
            return TrialResult(None)
        value = outcome.number(key)
        assert value is not None, "plans without validation data are refused before the first trial"
        validated.append(value)
        tested.append((outcome.accuracy if select_by == "accuracy" else outcome.balanced_accuracy) or 0.0)
    return TrialResult((validated, tested), select_by)


@dataclass
class _Watcher(Silent):
    """Reports the best value of a run's validation metric after every evaluation."""

    report: Report
    key: str
    before: int
    best: float = field(default=0.0)

    def round(self, number: int, record: RoundRecord) -> None:
        if (value := record.number(self.key)) is not None:
            self.best = max(self.best, value)
            self.report(self.best, self.before + number)
