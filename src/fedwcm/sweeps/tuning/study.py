"""A study of one method in a file that several processes share: they take trials until the budget is used."""

import math
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState

from fedwcm.config.flags import OPTIONS, option_key
from fedwcm.config.options import parse_value
from fedwcm.config.settings import read_toml, split_list
from fedwcm.experiment.folder import SEARCH_FILE
from fedwcm.experiment.lock import locked, require_folder
from fedwcm.utils.json_record import is_number

ALLOWED = "log:LOW:HIGH, LOW:HIGH, int:LOW:HIGH, intlog:LOW:HIGH, or values A,B,C"

Space = dict[str, BaseDistribution]
"""Dotted options, with the range or the values to search."""


def space_from(ranges: Mapping[str, object], file: str | Path | None = None) -> Space:
    """Return the ranges or lists of options, by flag or dotted name, on top of those of a TOML file."""
    space: Space = {}
    if file is not None:
        space = {key: distribution(value, key) for key, value in read_toml(Path(file)).items()}
    for name, value in ranges.items():
        key = option_key(name)
        space[key] = distribution(value, key)
    if not space:
        raise ValueError(f"there is nothing to search: name an option and its range, {ALLOWED}")
    return space


def ranges_in(texts: Iterable[str]) -> dict[str, str]:
    """Return the ranges of `KEY=RANGE` texts."""
    ranges: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--search {text!r} is not allowed: it must be KEY=RANGE, with {ALLOWED}")
        if name.strip() in ranges:
            raise ValueError(f"--search {name.strip()} is given twice: leave out one of them")
        ranges[name.strip()] = value.strip()
    return ranges


def distribution(value: object, key: str) -> BaseDistribution:
    """Return the range that a text describes, or the values in a list."""
    if isinstance(value, list | tuple):
        return CategoricalDistribution(value)
    parts = str(value).split(":")
    kind = parts[0] if len(parts) == 3 else ""
    if len(parts) == 1:
        return CategoricalDistribution([_scalar(parse_value(item)) for item in split_list(str(value))])
    ends = [parse_value(part) for part in parts[-2:]]
    low, high = (end if is_number(end) else None for end in ends)
    if kind.endswith("log") and low is not None and low <= 0:
        raise ValueError(f"search {key} = {value!r} is not allowed: it must be {kind}:LOW:HIGH with LOW above 0")
    wrong = len(parts) > 3 or kind not in ("", "log", "int", "intlog") or low is None or high is None
    if wrong or low is None or high is None or low >= high:
        raise ValueError(f"search {key} = {value!r} is not allowed: it must be {ALLOWED}, with LOW < HIGH")
    if kind.startswith("int"):
        return IntDistribution(int(low), int(high), log=kind == "intlog")
    if key in OPTIONS and OPTIONS[key].kind.startswith("a whole number"):
        whole = f"{'intlog' if kind else 'int'}:{parts[-2]}:{parts[-1]}"
        raise ValueError(f"search {key} = {value!r} is not allowed: it is a whole number, so write {whole}")
    return FloatDistribution(float(low), float(high), log=kind == "log")


def of_method(space: Mapping[str, BaseDistribution], options: Iterable[str]) -> Space:
    """Return the part of a space that applies to a method with these options: `method.x` only if it has x."""
    known = {f"method.{option}" for option in options}
    return {key: value for key, value in space.items() if not key.startswith("method.") or key in known}


def _scalar(value: object) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else str(value)


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
        requested: everything else that trials depend on, as text; a study with another text is refused.
        warmup: rounds of a run in which it is not pruned.
    """

    def __init__(self, folder: Path, name: str, space: Space, requested: str, warmup: int) -> None:
        self.folder, self.space = folder, space
        require_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        journal = str(folder / SEARCH_FILE)
        storage = JournalStorage(JournalFileBackend(journal, _JournalLock(journal)))
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=warmup)
        with _turn(folder):
            self.study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize", pruner=pruner, load_if_exists=True
            )
            recorded = self.study.user_attrs.get("asked", requested)
            if recorded != requested:
                raise ValueError(f"{folder} holds a search of {name} with other options: choose another folder")
            self.study.set_user_attr("asked", requested)

    def next_trial(self, budget: int) -> Trial | None:
        """Return the next trial of this process; None if the budget is used up, or the rest runs elsewhere."""
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
        return sorted(ended, key=lambda trial: (trial.state != TrialState.COMPLETE, -(trial.value or 0.0)))

    def _give_back_dead_trials(self) -> None:
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            host, process = trial.user_attrs.get("owner", (socket.gethostname(), 0))
            if host == socket.gethostname() and not _lives(process):
                self.study.tell(trial.number, state=TrialState.FAIL)
                self.study.enqueue_trial(trial.params)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process > 0


class _JournalLock(JournalFileSymlinkLock):
    """A lock that ends with its process; Optuna's own outlives a process that is killed, and is waited for."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        self._folder, self._held = Path(f"{journal}.lock"), ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(locked(self._folder, patience=math.inf))
        return True

    def release(self) -> None:
        self._held.close()


def _turn(folder: Path) -> AbstractContextManager[None]:
    """Wait until no other process is taking a trial."""
    return locked(folder / "dealing", patience=math.inf)
