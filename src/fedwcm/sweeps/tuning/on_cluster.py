"""The trials of a search on a Ray cluster, each on one worker, as many at a time as there are workers."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from optuna.trial import Trial

from fedwcm.config.schema import Config
from fedwcm.engine.backends.errors import WorkerError
from fedwcm.sweeps.cluster_calls import ATTEMPTS, ClusterCalls, Ended, Send, Warned, for_one_worker
from fedwcm.sweeps.tuning.trial import Plan, Search, TrialResult, line, run_trial, tell_pruned

Key = tuple[str, int]
"""A method and the number of its trial."""


def search_on_cluster(search: Search) -> None:
    """Try the planned settings of every method. Trials that are stopped or lost are given back to their study."""
    trials = _Trials(search)
    try:
        trials.run()
    finally:
        trials.give_back()


class _Trials(ClusterCalls):
    """The running trials."""

    def __init__(self, search: Search) -> None:
        super().__init__(search.plans[0].config)
        self._search = search
        self._going: dict[Key, tuple[Plan, Trial]] = {}
        self._pruned: set[Key] = set()
        self._losses: Counter[str] = Counter()

    def start_next(self) -> bool:
        for plan in self._search.plans:
            trial = self._search.studies[plan.name].next_trial(self._search.trials)
            if trial is not None:
                key = plan.name, trial.number
                self._going[key] = plan, trial
                configs = [for_one_worker(run) for run in plan.configs(trial.params, self._search.seeds)]
                self.start(key, _run_on_worker, configs, self.data)
                return True
        return False

    def receive(self, key: Key, message: object) -> None:
        if isinstance(message, Warned):
            warnings.warn(message.text.removeprefix("warning: "), stacklevel=2)
        elif isinstance(message, tuple) and key in self._going and key not in self._pruned:
            _, trial = self._going[key]
            trial.report(*message)
            if trial.should_prune():
                self._pruned.add(key)
                self.stop(key)

    def end(self, call: Ended) -> None:
        plan, trial = self._going[call.key]
        study = self._search.studies[plan.name]
        if isinstance(call.result, str):
            raise ValueError(call.result)
        if call.lost:
            self._losses[repr(trial.params)] += 1
            if self._losses[repr(trial.params)] == ATTEMPTS:
                raise WorkerError(f"{line(plan, trial, call.lost)}, like {ATTEMPTS - 1} others before")
            study.give_back(trial)
            outcome = f"a worker was lost ({call.lost}); it is tried again"
        elif isinstance(call.result, TrialResult):
            outcome = call.result.tell(study, trial)
        else:
            outcome = tell_pruned(study, trial)
        del self._going[call.key]
        self._search.say(line(plan, trial, outcome))

    def give_back(self) -> None:
        """Return the trials that have not ended to their studies."""
        for plan, trial in self._going.values():
            self._search.studies[plan.name].give_back(trial)


def _run_on_worker(send: Send, configs: Sequence[Config], dataset: object) -> TrialResult | str:
    """Run a trial, on the worker; return its result or the error."""
    try:
        whole = [replace(config, source=dataset) for config in configs]
        return run_trial(whole, lambda accuracy, rounds: send((accuracy, rounds)))
    except (ValueError, OSError) as error:
        return str(error)
