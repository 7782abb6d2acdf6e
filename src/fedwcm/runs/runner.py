"""Run an experiment to the end: evaluate, record, checkpoint, resume."""

import math
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from fedwcm.config.build import Experiment, LabelledTensors
from fedwcm.config.schema import to_settings
from fedwcm.core.json_record import finite
from fedwcm.core.mixins import Momentum
from fedwcm.core.types import State, Vec
from fedwcm.engine.backends.plan import threads
from fedwcm.engine.evaluate import Evaluation, evaluate
from fedwcm.engine.rounds import DivergedError, ServerState
from fedwcm.metrics.classification import ClassificationMetrics, summarise
from fedwcm.metrics.diagnostics import diagnosing
from fedwcm.runs import checkpoint, interrupts
from fedwcm.runs.files import StorageError
from fedwcm.runs.folder import RunFolder
from fedwcm.runs.interrupts import StoppedError
from fedwcm.runs.model_file import write_model
from fedwcm.runs.progress import Progress
from fedwcm.runs.records import RoundRecord, Summary, outcome_of, title_of
from fedwcm.runs.trackers.tracking import Tracking


class MomentumGainWarning(UserWarning):
    """The momentum has a gain of 1 or more: it grows whatever the data."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """A finished run."""

    history: list[RoundRecord]
    summary: Summary
    model: State


class Runner:
    """One run of an experiment, in a folder or in memory only."""

    def __init__(self, experiment: Experiment, folder: RunFolder | None, progress: Progress) -> None:
        self.experiment, self.folder, self.progress = experiment, folder, progress
        self.clock = experiment.rounds.clock
        self.history: list[RoundRecord] = []
        self.seconds = 0.0
        self._saved = 0
        self.confusion: Evaluation | None = None
        self.tracking = Tracking(experiment.config.run.track)

    def run(self) -> RunResult:
        """Run the remaining rounds; on divergence, write the summary and raise the error."""
        try:
            return self._run()
        finally:
            self.tracking.close()
            self.experiment.rounds.backend.close()

    def _run(self) -> RunResult:
        experiment, last = self.experiment, self.experiment.config.run.rounds
        self.state = self._start()
        self._warn_of_gain()
        self.progress.start(experiment.config.title, last, self.state.round)
        try:
            if self.folder is not None:
                self.tracking.start(self.folder.path, to_settings(experiment.config), self.state.round)
            while self.state.round < last:
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
            state, played = self.experiment.rounds.step(self.state)
        options = self.experiment.config.run
        evaluated = state.round % options.eval_every == 0 or state.round == options.rounds
        values: dict[str, object] = {"round": state.round, **played}
        if evaluated:
            with self.clock.phase("evaluation"):
                values |= self._evaluate(state)
        self.seconds += time.perf_counter() - began
        if evaluated and options.profile:
            values["phase_seconds"] = self.clock.read()
        record = RoundRecord.from_json(finite({**values, "seconds": self.seconds}), f"round {state.round}")
        with interrupts.deferred():  # or a state would be saved without its record
            if evaluated:
                self._record(record)
            self.state = state
            if state.round % options.checkpoint_every == 0 and state.round < options.rounds:
                with self.clock.phase("checkpoint"):
                    self._save()
        self.progress.round(state.round, record)

    def _evaluate(self, state: ServerState) -> dict[str, object]:
        experiment = self.experiment
        if experiment.test is None:
            return {}
        counts, model = experiment.train_counts, experiment.rounds.model(state)
        with diagnosing(
            experiment.config.run.diagnostics, experiment.network, experiment.test.labels, counts
        ) as diagnosed:
            self.confusion = tested = self._tested(model, experiment.test)
        if not math.isfinite(tested.loss):
            raise DivergedError(f"the test loss is not finite after round {state.round}")
        measures = {"test_loss": tested.loss, **vars(summarise(tested.confusion, counts)), **diagnosed}
        if experiment.val is not None:
            held_out = self._tested(model, experiment.val)
            correct = np.diag(held_out.confusion).sum() / held_out.confusion.sum()
            measures |= {"val_accuracy": float(correct), "val_loss": held_out.loss}
        return measures | (self._plain(experiment.rounds.last_model(state)) if state.average else {})

    def _plain(self, model: tuple[Vec, Vec]) -> dict[str, object]:
        """Measure the model of the last round, where an average over the rounds is what is evaluated."""
        experiment = self.experiment
        measures: dict[str, object] = {}
        if experiment.test is not None:
            tested = self._metrics(model, experiment.test)
            measures |= {"plain_accuracy": tested.test_accuracy, "plain_few": tested.few}
        if experiment.val is not None:
            measures["plain_val_balanced_accuracy"] = self._metrics(model, experiment.val).balanced_accuracy
        return measures

    def _metrics(self, model: tuple[Vec, Vec], samples: LabelledTensors) -> ClassificationMetrics:
        return summarise(self._tested(model, samples).confusion, self.experiment.train_counts)

    def _tested(self, model: tuple[Vec, Vec], samples: LabelledTensors) -> Evaluation:
        network, classes = self.experiment.network, len(self.experiment.train_counts)
        return evaluate(network, *model, samples.inputs, samples.labels, classes)

    def _record(self, record: RoundRecord) -> None:
        self.history.append(record)
        if self.folder is not None:
            self.folder.append_metrics(record)
        self.tracking.log(record)

    def _save(self) -> None:
        if self.folder is not None and self.state.round:
            history = [record for record in self.history if record.round <= self.state.round]
            saved = checkpoint.Checkpoint(self.state, history, self.seconds)
            checkpoint.save(self.folder.checkpoints, saved, self.experiment.rounds.store)
            self._saved = self.state.round

    def _save_last_round(self) -> None:
        """Save the last round that was completed; the one that was cut short is forgotten."""
        self.experiment.rounds.store.rollback(self.state.round)
        if self.state.round > self._saved:
            self._save()

    def _finish(self) -> RunResult:
        experiment, state = self.experiment, self.state
        model = experiment.network.state_dict(*experiment.rounds.model(state))
        if self.folder is not None:
            self._save()
            write_model(self.folder, model, experiment.facts)
        return RunResult(self.history, self._write_summary(), model)

    def _write_summary(self, diverged: str | None = None) -> Summary:
        config, reached = self.experiment.config, outcome_of(self.history)
        summary = Summary(
            **vars(reached),
            name=config.title,
            method=config.method.name,
            loss=config.loss.name,
            sampler=config.sampler.name,
            dataset=config.data.title,
            seed=config.run.seed,
            diverged=diverged,
            seconds_per_round=self.seconds / max(1, reached.rounds),
            backend=self.experiment.choice.name,
            parameters=self.experiment.network.size,
            train_counts=tuple(self.experiment.train_counts.tolist()),
            confusion=None if self.confusion is None else tuple(map(tuple, self.confusion.confusion.tolist())),
        )
        if self.folder is not None:
            self.folder.write_summary(summary)
        self.tracking.finish(summary)
        return summary

    def _title(self) -> str:
        config = self.experiment.config
        return title_of(config.title, config.method.name, config.loss.name, config.sampler.name)

    def _warn_of_gain(self) -> None:
        trainer = self.experiment.rounds.trainer
        if not isinstance(trainer.method, Momentum):
            return
        gain = trainer.method.starting_gain(trainer.population, self.experiment.rounds.federation.samples)
        if gain >= 1:
            warnings.warn(
                f"the momentum of {self._title()} starts with a gain of {gain:.3f}: at 1 or more it "
                "grows round by round, whatever the data. To avoid it: method.momentum_norm=exact",
                MomentumGainWarning,
                stacklevel=2,
            )
