"""The search of `fedwcm tune`: the best options of each method by validation accuracy, all with one budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import optuna
from optuna.trial import Trial, TrialState

from fedwcm.api.plan import Cell, check
from fedwcm.api.request import Request, request
from fedwcm.api.training import start
from fedwcm.config.components import Components
from fedwcm.config.objects import options_of
from fedwcm.config.schema import Settings, from_settings, overlay, write_toml
from fedwcm.core.checks import require, unknown
from fedwcm.engine.rounds import DivergedError
from fedwcm.runs.records import RoundRecord
from fedwcm.tuning.report import write_report
from fedwcm.tuning.result import Tuning
from fedwcm.tuning.space import Space, of_method
from fedwcm.tuning.study import MethodStudy

VAL_FRACTION = 0.1
"""Share of the training data held out to choose by, if nothing else is said."""

WARMUP = 0.25
"""Share of a run's rounds before it may be pruned."""


@dataclass(frozen=True)
class Plan:
    """What is to be tried of one method."""

    name: str
    request: Request
    space: Space

    def settings(self, params: Settings, seed: int) -> Settings:
        return overlay(overlay(self.request.settings, params), {"run.seed": seed, "run.name": self.name})


def search_options(
    methods: Sequence[str],
    space: Space,
    seeds: Sequence[int],
    trials: int,
    out: Path,
    common: Request,
    say: Callable[[str], object] = lambda _: None,
) -> Tuning:
    """Try so many settings of every method, several seeds each, and write what was found.

    The same call goes on with a search that was stopped; in another process it helps with one that is going on.

    Args:
        methods: methods or recipes.
        space: the options to search; an option of the method is searched where the method has it.
        seeds: of the runs of each trial, whose mean validation accuracy is its value.
        trials: settings to try of each method.
        out: folder of the search.
        common: all other options.
        say: told how each trial ended.
    """
    require(trials >= 1, "trials", trials, "at least 1")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    common = _with_validation(common)
    plans = [_plan(method, space, common) for method in methods]
    _check(plans, space, out)
    studies = {}
    for plan in plans:
        warmup = int(WARMUP * plan.request.config.run.rounds)
        studies[plan.name] = MethodStudy(out, plan.name, plan.space, asked_text(plan, space, seeds), warmup)
    write_toml(from_settings(common.settings), out / "config.toml")
    for plan in plans:
        study = studies[plan.name]
        while (trial := study.next_trial(trials)) is not None:
            said = _played(plan, study, trial, seeds)
            say(f"{plan.name}, trial {trial.number + 1}: {_shown(trial.params)}: {said}")
    found = Tuning(out, seeds, {name: study.trials for name, study in studies.items()})
    write_report(out, found.trials, seeds)
    return found


def asked_text(plan: Plan, space: Space, seeds: Sequence[int]) -> str:
    """What the trials of a method depend on, besides the searched options."""
    return repr((sorted(plan.request.settings.items()), sorted(map(str, space.items())), list(seeds)))


def _with_validation(common: Request) -> Request:
    if "data.val_fraction" in common.settings:
        return common
    return replace(common, settings={**common.settings, "data.val_fraction": VAL_FRACTION})


def _plan(method: str, space: Space, common: Request) -> Plan:
    own = request(method, None, None, {})
    for key in space.keys() & own.settings.keys():
        raise ValueError(f"{method} fixes {key}, which is searched: leave it out of one of them")
    asked = replace(common, settings=overlay(common.settings, own.settings))
    options = options_of(Components.of(asked.config, asked.objects, trusted=asked.trusted).method)
    return Plan(method, asked, of_method(space, options))


def _check(plans: Sequence[Plan], space: Space, out: Path) -> None:
    """Refuse before the first trial what no method knows, and what could not run."""
    known = {key for plan in plans for key in plan.space}
    for key in space.keys() - known:
        raise unknown("option of these methods:", key, known)
    cells = []
    for plan in plans:
        some = optuna.create_study().ask(plan.space).params
        asked = replace(plan.request, settings=plan.settings(some, 0))
        cells.append(Cell(plan.name, 0, asked, out / "none"))
    check(cells)


def _played(plan: Plan, study: MethodStudy, trial: Trial, seeds: Sequence[int]) -> str:
    """Run a trial with every seed, and say how it ended."""
    validated: list[float] = []
    tested: list[float] = []
    try:
        for seed in seeds:
            asked = replace(plan.request, settings=plan.settings(trial.params, seed))
            watcher = _Watcher(trial, len(validated) * asked.config.run.rounds)
            summary = start(asked, out=None, resume=False, report=False, progress=watcher).summary
            validated.append(_validation(summary.val_accuracy))
            tested.append(summary.accuracy or 0.0)
    except optuna.TrialPruned:
        study.study.tell(trial, state=TrialState.PRUNED)
        return "pruned"
    except DivergedError:
        trial.set_user_attr("diverged", True)
        study.study.tell(trial, 0.0)
        return "diverged"
    except BaseException:
        study.give_back(trial)
        raise
    trial.set_user_attr("val_accuracy", validated)
    trial.set_user_attr("test_accuracy", tested)
    study.study.tell(trial, float(np.mean(validated)))
    return f"validation accuracy {np.mean(validated):.4f}"


def _validation(accuracy: float | None) -> float:
    if accuracy is None:
        raise ValueError("data.val_fraction = 0 is not allowed: options are chosen on validation data")
    return accuracy


def _shown(params: Settings) -> str:
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in params.items()}
    return ", ".join(f"{key}={value}" for key, value in shown.items())


@dataclass
class _Watcher:
    """Reports a run's validation accuracy to its trial, and ends the run if the trial is pruned."""

    trial: Trial
    before: int
    best: float = field(default=0.0)

    def start(self, title: str, rounds: int, done: int) -> None:
        pass

    def round(self, number: int, record: RoundRecord) -> None:
        if record.val_accuracy is None:
            return
        self.best = max(self.best, record.val_accuracy)
        self.trial.report(self.best, self.before + number)
        if self.trial.should_prune():
            raise optuna.TrialPruned

    def close(self) -> None:
        pass
