"""A study of one method in a file that several processes share: they take trials until the budget is used."""

import math
import os
import socket
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from fedwcm.experiment.folder import SEARCH_FILE
from fedwcm.experiment.lock import locked, require_folder
from fedwcm.sweeps.tuning.space import Space

SPENT = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
"""States of trials that count for the budget."""

STARTUP_TRIALS = 5
"""Trials that are drawn at random and never pruned, before later ones learn from them."""


class MethodStudy:
    """The trials of one method.

    Args:
        folder: of the whole search; `trials.journal` in it is the storage.
        name: of the method, as it was typed.
        space: the options to search.
        asked: everything else that trials depend on, as text; a study with another text is refused.
        warmup: rounds of a run in which it is not pruned.
    """

    def __init__(self, folder: Path, name: str, space: Space, asked: str, warmup: int) -> None:
        self.folder, self.space = folder, space
        require_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        storage = JournalStorage(JournalFileBackend(str(folder / SEARCH_FILE)))
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=warmup)
        with _turn(folder):
            self.study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize", pruner=pruner, load_if_exists=True
            )
            held = self.study.user_attrs.get("asked", asked)
            if held != asked:
                raise ValueError(f"{folder} holds a search of {name} with other options: choose another folder")
            self.study.set_user_attr("asked", asked)

    def next_trial(self, budget: int) -> Trial | None:
        """The next trial of this process; None if the budget is used up, or the remaining trials run elsewhere."""
        with _turn(self.folder):
            self._give_back_dead_trials()
            spent = self.study.get_trials(deepcopy=False, states=SPENT)
            if len(spent) >= budget:
                return None
            # Each trial has its own sampler: processes would otherwise draw the same numbers. The first draws of
            # seeds 0, 1, 2, … are alike, those of their seed sequences are not.
            # A trial that was given back is in the list twice and counts once: methods keep equal candidates.
            number = sum(trial.state != TrialState.FAIL for trial in self.study.get_trials(deepcopy=False))
            seed = int(np.random.SeedSequence(number).generate_state(1)[0])
            self.study.sampler = TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
            trial = self.study.ask(self.space)
            trial.set_user_attr("owner", [socket.gethostname(), os.getpid()])
            return trial

    def give_back(self, trial: Trial) -> None:
        """Return an interrupted trial to the study, for the next process that asks."""
        self.study.enqueue_trial(trial.params)
        self.study.tell(trial, state=TrialState.FAIL)

    @property
    def trials(self) -> list[FrozenTrial]:
        """The trials that have ended, the best first; pruned ones last."""
        ended = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        return sorted(ended, key=_rank)

    def _give_back_dead_trials(self) -> None:
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            host, process = trial.user_attrs.get("owner", (socket.gethostname(), 0))
            if host == socket.gethostname() and not _lives(process):
                self.study.tell(trial.number, state=TrialState.FAIL)
                self.study.enqueue_trial(trial.params)


def _rank(trial: FrozenTrial) -> tuple[bool, float]:
    return trial.state != TrialState.COMPLETE, -(trial.value or 0.0)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process > 0


def _turn(folder: Path) -> AbstractContextManager[None]:
    """Wait until no other process is taking a trial."""
    return locked(folder / "dealing", patience=math.inf)
