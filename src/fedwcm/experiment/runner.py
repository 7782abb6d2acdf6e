"""Run an experiment to the end: evaluate, record, checkpoint, resume."""

import time
import warnings
from contextlib import ExitStack, suppress

from fedwcm.config.recipes import RECIPES
from fedwcm.config.settings import to_settings
from fedwcm.core.method import ClientStatistics, Momentum
from fedwcm.engine.backends.errors import explained_if_out_of_memory
from fedwcm.engine.backends.plan import threads
from fedwcm.engine.rounds import DivergedError, ServerState
from fedwcm.experiment import checkpoint, interrupts
from fedwcm.experiment.build import Experiment
from fedwcm.experiment.checkpoint import History
from fedwcm.experiment.evaluator import EvaluatedModel, Evaluator, Measure, out_of_patience
from fedwcm.experiment.files import StorageError
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.interrupts import StoppedError
from fedwcm.experiment.model_file import write_model
from fedwcm.experiment.progress import Progress, Silent
from fedwcm.experiment.records import RoundRecord, Summary, outcome_of, selected_record, title_of
from fedwcm.experiment.run import Run
from fedwcm.experiment.trackers.tracking import Tracking
from fedwcm.utils.json_record import finite


class Runner:
    """One run of an experiment, in a folder or in memory only."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder | None,
        progress: Progress | None = None,
        measure: Measure | None = None,
    ) -> None:
        self.experiment, self.folder, self.progress = experiment, folder, progress or Silent()
        self.evaluator = Evaluator(experiment, measure, None if folder is None else folder.path)
        self.clock = experiment.rounds.clock
        self._history = History(folder)
        self._mark = self._history.mark()
        self.seconds = 0.0
        self._saved = 0
        self.selected: EvaluatedModel | None = None
        self._best: list[RoundRecord] = []
        self.stopped: str | None = None
        self.tracking = Tracking(experiment.config.run.track)

    @property
    def history(self) -> list[RoundRecord]:
        """The evaluated rounds."""
        return self._history.records

    def run(self) -> Run:
        """Run the remaining rounds; on divergence, write the summary and raise the error.

        The model is that of the selected round where there is validation data, else the last.
        """
        experiment, last = self.experiment, self.experiment.config.run.rounds
        with ExitStack() as ending:
            ending.callback(experiment.rounds.backend.close)
            ending.callback(self.tracking.close)
            self.state = self._start()
            warn_at_start(experiment)
            self.progress.start(experiment.config.title, last, self.state.round)
            try:
                if self.folder is not None:
                    self.tracking.start(self.folder.path, to_settings(experiment.config), self.state.round)
                while self.state.round < last and not self.stopped:
                    self._round()
                    self.stopped = out_of_patience(self.history, experiment.config.run)
            except DivergedError as error:
                self._write_summary(diverged=str(error))
                raise
            except KeyboardInterrupt:
                self._save_last_round()
                raise StoppedError(self._saved) from None
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
        store = experiment.rounds.store
        saved, complaints = checkpoint.load(self.folder.checkpoints, store, fresh, self._history)
        if saved is not None and complaints:
            complaints.append(f"resuming from the checkpoint of round {saved.server.round}")
        elif saved is None and (complaints or self.folder.has_metrics):
            complaints.append(f"{self.folder.checkpoints} has no checkpoint to resume from: starting with round 1")
        for complaint in complaints:
            warnings.warn(complaint, stacklevel=2)
        if saved is not None:
            self.seconds, self.selected, self._saved = saved.seconds, saved.selected, saved.server.round
            kept_round = None if self.selected is None else self.selected.round
            self._best = [record for record in self.history if record.round == kept_round]
            self.stopped = out_of_patience(self.history, experiment.config.run)
        self.folder.discard_results()
        self.folder.write_config(experiment.config)
        self._history.begin()
        self._mark = self._history.mark()
        return saved.server if saved is not None else fresh

    def _round(self) -> None:
        began, options = time.perf_counter(), self.experiment.config.run
        number = self.state.round + 1
        evaluated = number % options.eval_every == 0 or number == options.rounds
        with threads(self.experiment.execution.threads):
            state, measures = self.experiment.rounds.step(self.state, recorded=evaluated)
        if evaluated:
            with self.clock.phase("evaluation"), explained_if_out_of_memory(lambda: f"round {number}"):
                model = self.evaluator.model(state)
                values = self.evaluator.measures(model, state)
            if options.profile:
                values["phase_seconds"] = self.clock.read()
        self.seconds += time.perf_counter() - began
        record = RoundRecord(round=state.round, seconds=self.seconds, **vars(measures))
        if evaluated:  # checked, as measures of the model may be anybody's
            record = RoundRecord.from_json(finite({**record.to_json(), **values}), f"round {state.round}")
        with interrupts.deferred():  # otherwise a state could be saved without its record
            if evaluated:
                self._history.append(record)
                self.tracking.log(record)
            self.state, self._mark = state, self._history.mark()
            if evaluated and selected_record([*self._best, record], options.select_by) is record:
                self._best, self.selected = [record], model.copy()
            if state.round % options.checkpoint_every == 0 and state.round < options.rounds:
                with self.clock.phase("checkpoint"):
                    self._save()
        self.progress.round(state.round, record)

    def _save(self) -> None:
        if self.folder is not None and self.state.round:
            self._history.sync()
            settings = to_settings(self.experiment.config)
            saved = checkpoint.Checkpoint(self.state, self._mark, self.seconds, settings, self.selected)
            checkpoint.save(self.folder.checkpoints, saved, self.experiment.rounds.store)
            self._saved = self.state.round

    def _save_last_round(self) -> None:
        """Save the last round that was completed; the one that was cut short is forgotten."""
        self.experiment.rounds.store.rollback(self.state.round)
        if self.state.round > self._saved:
            self._save()

    def _finish(self) -> Run:
        if self.history and not any(record.participants for record in self.history):
            warnings.warn("no client answered in any of the evaluated rounds", stacklevel=2)
        network, facts, last = self.experiment.network, self.experiment.facts, self.evaluator.model(self.state)
        if self.folder is not None:
            self._save()
            if self.selected is not None:
                write_model(self.folder.last_model_file, network.state_dict(last.x, last.buffers), facts)
        kept = self.selected or last
        model = network.state_dict(kept.x, kept.buffers)
        if self.folder is not None:
            write_model(self.folder.model_file, model, facts)
        summary = self._write_summary()
        known = {"config": self.experiment.config, "history": self.history, "summary": summary}
        return Run(self.folder, **known, model=model, module=self.experiment.predictor)

    def _write_summary(self, diverged: str | None = None) -> Summary:
        config = self.experiment.config
        was_evaluated = bool(self.history) and self.history[-1].round == self.state.round
        last = self.evaluator.model(self.state) if was_evaluated else None
        reached = outcome_of(self.history, config.run.select_by)
        summary = Summary(
            **vars(reached),
            name=config.title,
            method=config.method.name,
            loss=config.loss.name,
            sampler=config.sampler.name,
            dataset=config.data.title,
            seed=config.run.seed,
            diverged=diverged,
            stopped=self.stopped,
            seconds_per_round=self.seconds / max(1, self.state.round),
            backend=self.experiment.execution.name,
            parameters=self.experiment.network.size,
            train_counts=tuple(self.experiment.train_counts.tolist()),
            encryption=self.experiment.encryption,
            **self.evaluator.kept_measures(self.selected, last, self.state),
        )
        if self.folder is not None:
            self.folder.write_summary(summary)
        self.tracking.finish(summary)
        return summary


class MomentumGainWarning(UserWarning):
    """The momentum has a gain of 1 or more: it grows whatever the data."""


def warn_at_start(experiment: Experiment) -> None:
    """Warn of growing momentum, rounds of one client, classes corrected for twice, and an idle target."""
    _warn_of_gain(experiment)
    _warn_of_single_clients(experiment)
    _warn_of_double_correction(experiment)
    _warn_of_idle_target(experiment)


def _warn_of_gain(experiment: Experiment) -> None:
    trainer, config = experiment.rounds.trainer, experiment.config
    if not isinstance(trainer.method, Momentum):
        return
    gain = trainer.method.starting_gain(trainer.population, experiment.rounds.federation.samples)
    if gain >= 1:
        title = title_of(config.title, config.method.name, config.loss.name, config.sampler.name)
        warnings.warn(
            f"the momentum of {title} starts with a gain of {gain:.3f}: at 1 or more it "
            "grows round by round, whatever the data. To avoid it: method.momentum_norm=exact",
            MomentumGainWarning,
            stacklevel=3,
        )


def _warn_of_single_clients(experiment: Experiment) -> None:
    sampled, clients = experiment.config.participation, len(experiment.rounds.federation.samples)
    if sampled.sampling != "bernoulli" and sampled.cohort_size(clients) == 1 < clients:
        text = f"participation.fraction = {sampled.fraction:g} of {clients} clients is one client per round"
        warnings.warn(f"{text}: there is nothing to weight; with few clients, set it to 1", stacklevel=3)


def _warn_of_double_correction(experiment: Experiment) -> None:
    trainer = experiment.rounds.trainer
    if trainer.sampler.balances_classes and trainer.loss.corrects_prior and not _by_recipe(experiment):
        warnings.warn(
            f"the sampler {trainer.sampler.name} and the loss {trainer.loss.name} both correct for the class "
            "distribution: together they favour rare classes; use one of them",
            stacklevel=3,
        )


def _warn_of_idle_target(experiment: Experiment) -> None:
    trainer = experiment.rounds.trainer
    followed = isinstance(trainer.method, ClientStatistics) or trainer.loss.follows_target
    if experiment.config.run.target is not None and not followed:
        text = f"run.target changes nothing in training with {trainer.method.name} and {trainer.loss.name}"
        warnings.warn(f"{text}: only evaluate --mix target follows it", stacklevel=3)


def _by_recipe(experiment: Experiment) -> bool:
    """Return whether loss and sampler are those of a recipe, which chooses both on purpose."""
    settings = to_settings(experiment.config)
    both = [r.settings for r in RECIPES.values() if {"loss.name", "sampler.name"} <= r.settings.keys()]
    return any(
        all(settings.get(key) == recipe[key] for key in recipe if key.startswith(("loss.", "sampler.")))
        for recipe in both
    )
