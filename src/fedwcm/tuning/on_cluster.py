"""The trials of a search on a Ray cluster, each on one worker, as many at a time as there are workers."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from optuna.trial import Trial

from fedwcm.api.cluster_calls import ClusterCalls, Ended, Tell, Warned
from fedwcm.api.execution import REFRESH
from fedwcm.api.request import Request
from fedwcm.api.runs_on_cluster import ATTEMPTS, alone, with_data, worker_count
from fedwcm.engine.backends.errors import WorkerError
from fedwcm.tuning.study import MethodStudy
from fedwcm.tuning.trial import Outcome, Plan, line, play, pruned

Key = tuple[str, int]
"""A method and the number of its trial."""


def search_on_cluster(
    plans: Sequence[Plan],
    studies: Mapping[str, MethodStudy],
    seeds: Sequence[int],
    trials: int,
    say: Callable[[str], object],
) -> None:
    """Try so many settings of every method. Trials that are stopped or lost are given back to their study."""
    search = _Search(plans, studies, seeds, trials, say)
    try:
        while search.go_on():
            pass
    finally:
        search.close()


class _Search:
    """The trials that are going on."""

    def __init__(
        self,
        plans: Sequence[Plan],
        studies: Mapping[str, MethodStudy],
        seeds: Sequence[int],
        trials: int,
        say: Callable[[str], object],
    ) -> None:
        self._plans, self._studies, self._seeds, self._trials, self._say = plans, studies, seeds, trials, say
        self._options = plans[0].request.config.run
        self._calls = ClusterCalls(self._options.worker_gpus)
        self._data: Any = ray.put(plans[0].request.objects.dataset)  # once for all trials
        self._going: dict[Key, tuple[Plan, Trial]] = {}
        self._pruned: set[Key] = set()
        self._losses: Counter[str] = Counter()

    def go_on(self) -> bool:
        """Start the trials that there is room for, and see how the others are; False when none is left."""
        room = worker_count(self._options) - len(self._going)
        while room > 0 and self._start_next():
            room -= 1
        ended = self._calls.wait(REFRESH) if self._going else []
        for key, letter in self._calls.told():
            self._hear(key, letter)
        for call in ended:
            self._end(call)
        return bool(self._going)

    def close(self) -> None:
        """Stop what is going on, and leave it to whoever goes on with the search."""
        self._calls.close()
        for plan, trial in self._going.values():
            self._studies[plan.name].give_back(trial)

    def _start_next(self) -> bool:
        for plan in self._plans:
            trial = self._studies[plan.name].next_trial(self._trials)
            if trial is not None:
                key = plan.name, trial.number
                self._going[key] = plan, trial
                requests = [with_data(alone(own), None) for own in plan.requests(trial.params, self._seeds)]
                self._calls.start(key, _play_there, requests, self._data)
                return True
        return False

    def _hear(self, key: Key, letter: object) -> None:
        if isinstance(letter, Warned):
            warnings.warn(letter.text.removeprefix("warning: "), stacklevel=2)
        elif isinstance(letter, tuple) and key in self._going and key not in self._pruned:
            _, trial = self._going[key]
            trial.report(*letter)
            if trial.should_prune():
                self._pruned.add(key)
                self._calls.stop(key)

    def _end(self, call: Ended) -> None:
        plan, trial = self._going[call.key]
        study = self._studies[plan.name]
        if isinstance(call.result, str):
            raise ValueError(call.result)
        if call.lost:
            self._losses[repr(trial.params)] += 1
            if self._losses[repr(trial.params)] == ATTEMPTS:
                raise WorkerError(f"{line(plan, trial, call.lost)}, like {ATTEMPTS - 1} others before")
            study.give_back(trial)
            said = f"a worker was lost ({call.lost}); it is tried again"
        elif isinstance(call.result, Outcome):
            said = call.result.tell(study, trial)
        else:
            said = pruned(study, trial)
        del self._going[call.key]
        self._say(line(plan, trial, said))


def _play_there(tell: Tell, requests: Sequence[Request], dataset: object) -> Outcome | str:
    """On the worker: the runs of a trial; or what was wrong with them."""
    try:
        whole = [with_data(asked, dataset) for asked in requests]
        return play(whole, lambda accuracy, rounds: tell((accuracy, rounds)))
    except (ValueError, OSError) as error:
        return str(error)
