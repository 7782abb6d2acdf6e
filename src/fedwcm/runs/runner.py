"""Run an experiment to its end: evaluate, record, checkpoint, resume."""

import time
import warnings
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from fedwcm.config.build import Experiment, LabelledTensors
from fedwcm.config.schema import to_settings
from fedwcm.core.mixins import Momentum
from fedwcm.core.types import State
from fedwcm.engine.backends.plan import threads
from fedwcm.engine.evaluate import Evaluation, evaluate
from fedwcm.engine.rounds import DivergedError, ServerState
from fedwcm.metrics.classification import summarise
from fedwcm.metrics.diagnostics import diagnosing
from fedwcm.runs import checkpoint, interrupts
from fedwcm.runs.files import StorageError
from fedwcm.runs.folder import Record, RunFolder, finite
from fedwcm.runs.interrupts import StoppedError
from fedwcm.runs.progress import Progress
from fedwcm.runs.trackers.tracking import Tracking

LAST_ROUNDS = 10
"""Evaluated rounds whose mean accuracy is reported beside the final one."""


class MomentumGainWarning(UserWarning):
    """The momentum feeds itself: it grows whatever the data."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run that came to its end."""

    history: list[Record]
    summary: Record
    model: State


class Runner:
    """One run of an experiment, in a folder or in memory only."""

    def __init__(self, experiment: Experiment, folder: RunFolder | None, progress: Progress) -> None:
        self.experiment, self.folder, self.progress = experiment, folder, progress
        self.clock = experiment.rounds.clock
        self.history: list[Record] = []
        self.seconds = 0.0
        self.confusion: Evaluation | None = None
        self.tracking = Tracking(experiment.config.run.track)

    def run(self) -> RunResult:
        """Play the rounds that are left; on divergence the history is kept and the error passed on."""
        try:
            return self._run()
        finally:
            self.tracking.close()
            self.experiment.rounds.backend.close()

    def _run(self) -> RunResult:
        experiment, rounds = self.experiment, self.experiment.config.run.rounds
        self.state = self._start()
        self._warn_of_gain()
        self.progress.start(experiment.config.method.name, rounds, self.state.round)
        try:
            if self.folder is not None:
                self.tracking.start(self.folder.path, to_settings(experiment.config), self.state.round)
            while self.state.round < rounds:
                self._round()
        except DivergedError as error:
            self._write_summary(diverged=str(error))
            raise
        except KeyboardInterrupt:
            self._save_last_round()
            raise StoppedError from None
        except Exception:
            with suppress(StorageError):
                self._save_last_round()
            raise
        finally:
            self.progress.close()
        with interrupts.deferred():
            return self._finish()

    def _start(self) -> ServerState:
        experiment = self.experiment
        fresh = experiment.rounds.start(experiment.x, experiment.buffers)
        if self.folder is None:
            return fresh
        saved, complaints = checkpoint.load(self.folder.checkpoints, experiment.rounds.store, fresh)
        for complaint in complaints:
            warnings.warn(complaint, stacklevel=2)
        if saved is not None:
            self.history, self.seconds = list(saved.history), saved.seconds
        self.folder.write_config(experiment.config)
        self.folder.write_metrics(self.history)
        return saved.server if saved is not None else fresh

    def _round(self) -> None:
        began = time.perf_counter()
        with threads(self.experiment.choice.threads):
            state, record = self.experiment.rounds.step(self.state)
        options = self.experiment.config.run
        if state.round % options.eval_every == 0 or state.round == options.rounds:
            with self.clock.phase("evaluation"):
                record = {"round": state.round, **self._evaluate(state), **record}
        self.seconds += time.perf_counter() - began
        with interrupts.deferred():  # or a state would be saved without its record
            if "round" in record:
                profile = {"phase_seconds": self.clock.read()} if options.profile else {}
                self._record(finite({**record, "seconds": self.seconds, **profile}))
            self.state = state
            if state.round % options.checkpoint_every == 0 and state.round < options.rounds:
                with self.clock.phase("checkpoint"):
                    self._save()
        self.progress.round(state.round, record)

    def _evaluate(self, state: ServerState) -> Record:
        experiment = self.experiment
        if experiment.test is None:
            return {}
        counts = experiment.train_counts
        with diagnosing(
            experiment.config.run.diagnostics, experiment.network, experiment.test.labels, counts
        ) as diagnosed:
            self.confusion = tested = self._tested(state, experiment.test)
        measures: Record = {"test_loss": tested.loss, **summarise(tested.confusion, counts), **diagnosed}
        if experiment.val is not None:
            held_out = self._tested(state, experiment.val)
            correct = np.diag(held_out.confusion).sum() / held_out.confusion.sum()
            measures |= {"val_accuracy": float(correct), "val_loss": held_out.loss}
        return measures

    def _tested(self, state: ServerState, samples: LabelledTensors) -> Evaluation:
        experiment = self.experiment
        x = experiment.rounds.trainer.method.eval_params(state.x, state.method)
        classes = len(experiment.train_counts)
        return evaluate(experiment.network, x, state.buffers, samples.inputs, samples.labels, classes)

    def _record(self, record: Record) -> None:
        self.history.append(record)
        if self.folder is not None:
            self.folder.append_metrics(record)
        self.tracking.log(record)

    def _save(self) -> None:
        if self.folder is not None and self.state.round:
            history = [record for record in self.history if int(str(record["round"])) <= self.state.round]
            saved = checkpoint.Checkpoint(self.state, history, self.seconds)
            checkpoint.save(self.folder.checkpoints, saved, self.experiment.rounds.store)

    def _save_last_round(self) -> None:
        """Save the last round that was completed; the one that was cut short is forgotten."""
        self.experiment.rounds.store.rollback(self.state.round)
        self._save()

    def _finish(self) -> RunResult:
        experiment, state = self.experiment, self.state
        x = experiment.rounds.trainer.method.eval_params(state.x, state.method)
        model = experiment.network.state_dict(x, state.buffers)
        if self.folder is not None:
            self._save()
            self.folder.write_model(model, experiment.facts)
        return RunResult(self.history, self._write_summary(), model)

    def _write_summary(self, diverged: str | None = None) -> Record:
        config = self.experiment.config
        summary: Record = {
            "method": config.method.name,
            "dataset": config.data.dataset,
            "seed": config.run.seed,
            **outcome(self.history),
            "diverged": diverged,
            "seconds_per_round": self.seconds / max(1, _rounds_played(self.history)),
            "backend": self.experiment.choice.name,
            "parameters": self.experiment.network.size,
            "train_counts": self.experiment.train_counts.tolist(),
            "confusion": None if self.confusion is None else self.confusion.confusion.tolist(),
        }
        if self.folder is not None:
            self.folder.write_summary(summary)
        self.tracking.finish(summary)
        return summary

    def _warn_of_gain(self) -> None:
        trainer = self.experiment.rounds.trainer
        if not isinstance(trainer.method, Momentum):
            return
        gain = trainer.method.starting_gain(trainer.population, self.experiment.rounds.federation.samples)
        if gain >= 1:
            warnings.warn(
                f"the momentum of {trainer.method.name} starts with a gain of {gain:.3f}: at 1 or more it grows "
                "round by round, whatever the data. Cure: method.momentum_norm=exact",
                MomentumGainWarning,
                stacklevel=2,
            )


def outcome(history: list[Record]) -> Record:
    """The headline numbers of a history; the best round is chosen on the validation data where there is any."""
    if not history or "test_accuracy" not in history[-1]:
        return {"rounds": _rounds_played(history), "final_accuracy": None, "best_accuracy": None, "few": None}
    accuracies = [float(str(record["test_accuracy"])) for record in history]
    last = history[-1]
    summary: Record = {
        "rounds": last["round"],
        "final_accuracy": accuracies[-1],
        "last_mean_accuracy": float(np.mean(accuracies[-LAST_ROUNDS:])),
        "best_accuracy": max(accuracies),
        **{key: last[key] for key in ("balanced_accuracy", "macro_f1", "many", "medium", "few", "test_loss")},
    }
    if "val_accuracy" in last:
        best = int(np.argmax([float(str(record["val_accuracy"])) for record in history]))
        summary |= {"selected_round": history[best]["round"], "selected_accuracy": accuracies[best]}
    return summary


def _rounds_played(history: list[Record]) -> int:
    return int(str(history[-1]["round"])) if history else 0
