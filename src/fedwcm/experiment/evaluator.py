"""What is measured of the model after a round; which round's model is kept, and when a run stops early."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedwcm.config.options import NamedObject
from fedwcm.config.resolve import resolve
from fedwcm.config.schema import Component, RunOptions
from fedwcm.core.checks import unknown
from fedwcm.core.method import PersonalModels
from fedwcm.core.types import Floats, Vec
from fedwcm.engine.client import BUFFERS
from fedwcm.engine.evaluate import Evaluation, LabelledTensors, evaluate, predict_chunks
from fedwcm.engine.hook_checks import own_model
from fedwcm.engine.rounds import DivergedError, ServerState
from fedwcm.experiment.build import Experiment
from fedwcm.experiment.records import LISTED_CLIENTS, VALIDATION_METRICS, RoundRecord, pack_hits, selected_record
from fedwcm.metrics.calibration import expected_calibration_error, reliability
from fedwcm.metrics.classification import balanced_accuracy, shot_groups, summarise
from fedwcm.metrics.clients import ByOwnClasses, ClientAccuracy, OnOwnSamples, name_accuracies, spread_over_clients
from fedwcm.metrics.diagnostics import diagnosing, train_set_metrics
from fedwcm.metrics.own import METRICS, Evaluated, Metric
from fedwcm.metrics.tradeoff import DRAWN, STRENGTHS, TradeOff, trade_off
from fedwcm.models.predictor import predictor
from fedwcm.utils.json_record import is_number


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """The parameters and buffers that a round was evaluated with."""

    round: int
    x: Vec
    buffers: Vec

    def copy(self) -> "EvaluatedModel":
        return EvaluatedModel(self.round, self.x.clone(), self.buffers.clone())


def out_of_patience(history: Sequence[RoundRecord], options: RunOptions) -> str | None:
    """Return why the run stops after the last of these rounds; None if it goes on.

    Only the history decides, so that a resumed run stops where it would have stopped.
    """
    best = selected_record(history, options.select_by) if options.patience else None
    if best is None:
        return None
    key = VALIDATION_METRICS[options.select_by]
    since = sum(record.number(key) is not None for record in history if record.round > best.round)
    if since < options.patience:
        return None
    metric = options.select_by.replace("_", " ")
    return (
        f"after round {history[-1].round} of {options.rounds}: no better validation {metric} than that of round "
        f"{best.round} in {since} evaluations"
    )


Measure = Callable[[EvaluatedModel], Mapping[str, object]]
"""Measures a model on other than this machine's test data; the values go into the round's record."""


class Evaluator:
    """Measures models of an experiment on its test and validation data.

    Args:
        experiment: whose data and network are used.
        measure: measures every evaluated model elsewhere, too.
        folder: of the run, for files that its own metrics write.
    """

    def __init__(self, experiment: Experiment, measure: Measure | None = None, folder: Path | None = None) -> None:
        self._experiment, self._measure, self._folder = experiment, measure, folder
        self._own_metrics = find_metrics(experiment.config.run.metrics)
        self._client_accuracy = _client_accuracy(experiment)
        self._tested: Evaluation | None = None  # the last model's, on the test data

    def model(self, state: ServerState) -> EvaluatedModel:
        """Return the model that is evaluated after a round: also the one that is kept."""
        return EvaluatedModel(state.round, *self._experiment.rounds.model(state))

    def measures(self, model: EvaluatedModel, state: ServerState) -> dict[str, object]:
        """Return all that is recorded of the model after a round."""
        here = {**self._on_held_out_data(model, state), **self._plain(state)}
        return here if self._measure is None else {**here, **self._measure(model)}

    def kept_measures(
        self, selected: EvaluatedModel | None, last: EvaluatedModel | None, state: ServerState
    ) -> dict[str, Any]:
        """Return what the summary has about the kept model in addition to its record.

        Args:
            selected: the model that validation data has chosen, if there is any.
            last: the model of the last round, if it was evaluated.
            state: that after the last round, when clients that have models of their own have their last ones.
        """
        tested, measure = self._evaluate_kept(selected, last), self._client_accuracy
        if tested is None:
            return {"confusion": None}
        accuracy = None
        if measure is not None and len(measure.names) <= LISTED_CLIENTS:
            accuracy = name_accuracies(self._accuracy_of_clients(tested, last or selected, state), measure.names)
        return {
            "confusion": tuple(map(tuple, tested.confusion.tolist())),
            "hits": pack_hits(tested.correct),
            "client_accuracy": accuracy,
            "reliability": reliability(tested),
            **self._trade_off(selected or last),
        }

    def _trade_off(self, model: EvaluatedModel | None) -> dict[str, Any]:
        """Return what the model would do for other class mixes, and which of them validation data chooses."""
        experiment, options = self._experiment, self._experiment.config.run
        counts, shares = experiment.train_counts, experiment.facts.natural_shares
        if model is None or experiment.test is None or not shot_groups(counts, options.shot_groups):
            return {}

        def curve(samples: LabelledTensors, strengths: tuple[float, ...]) -> TradeOff:
            chunks = predict_chunks(experiment.network, model.x, model.buffers, samples.inputs)
            return trade_off(chunks, samples.labels, shares, counts, options.shot_groups, strengths)

        chosen = None if experiment.val is None else curve(experiment.val, STRENGTHS).best(options.select_by)
        drawn = tuple(sorted({*DRAWN, *(() if chosen is None else (chosen,))}))
        return {"trade_off": vars(curve(experiment.test, drawn)), "chosen_strength": chosen}

    def _accuracy_of_clients(self, tested: Evaluation, model: EvaluatedModel | None, state: ServerState) -> Floats:
        """Return the accuracy of each client, with a model of its own if the method has one for it."""
        experiment, measure = self._experiment, self._client_accuracy
        assert measure is not None
        assert experiment.test is not None
        accuracy, method = measure(tested), experiment.rounds.trainer.method
        if not isinstance(method, PersonalModels) or model is None:
            return accuracy
        store, layout = experiment.rounds.store, experiment.network.layout
        numbers = {name: k for k, name in enumerate(experiment.client_names or measure.names)}
        visited = set(store.visited_clients().tolist())  # others, and those held out, have no model
        for i, name in enumerate(measure.names):
            if (client := numbers.get(name)) in visited:
                c = store.read(np.array([client]), model.x.device)
                x = own_model(method, model.x, state.method, c, layout)
                own = replace(model, x=x, buffers=c[BUFFERS][0] if BUFFERS in c else model.buffers)
                rows = measure.rows(i)
                samples = LabelledTensors(experiment.test.inputs[rows], experiment.test.labels[rows])
                accuracy[i] = measure.of_one(i, self._on(samples, own))
        return accuracy

    def _on_held_out_data(self, model: EvaluatedModel, state: ServerState) -> dict[str, object]:
        experiment = self._experiment
        if experiment.test is None:
            return {}
        counts, options = experiment.train_counts, experiment.config.run
        with diagnosing(
            options.diagnostics, experiment.network, experiment.test.labels, counts, options.shot_groups
        ) as diagnosed:
            tested = self._on(experiment.test, model)
        if not math.isfinite(tested.loss):
            raise DivergedError(f"the test loss is not finite after round {model.round}")
        self._tested = tested
        metrics = summarise(tested.confusion, counts, options.shot_groups)
        ece = expected_calibration_error(tested)
        measures = {"test_loss": tested.loss, "test_ece": ece, **vars(metrics), **diagnosed}
        if "train_set" in options.diagnostics:
            federation = experiment.rounds.federation
            measures |= train_set_metrics(experiment.network, federation, model.x, model.buffers)
        if self._own_metrics:
            measures["metrics"] = self._measure_own(experiment.test, model)
        if self._client_accuracy is not None:
            measures |= spread_over_clients(self._accuracy_of_clients(tested, model, state))
        if experiment.val is not None:
            validated = self._on(experiment.val, model)
            measures["val_accuracy"] = float(np.diag(validated.confusion).sum() / validated.confusion.sum())
            measures["val_balanced_accuracy"] = balanced_accuracy(validated.confusion)
            measures["val_loss"] = validated.loss
        return measures

    def _measure_own(self, test: LabelledTensors, model: EvaluatedModel) -> dict[str, float]:
        """Return the numbers of the metrics of `run.metrics` on the test data."""
        experiment, network = self._experiment, self._experiment.network

        def make_model() -> nn.Module:
            module = deepcopy(network.module)
            module.load_state_dict(network.state_dict(model.x, model.buffers), strict=False)
            return predictor(module, experiment.facts)

        logits = torch.cat(list(predict_chunks(network, model.x, model.buffers, test.inputs)))
        outputs = test.labels.cpu().numpy(), logits.float().cpu().numpy()
        tested = Evaluated(model.round, *outputs, experiment.train_counts, test.inputs, self._folder, make_model)
        numbers: dict[str, float] = {}
        for name, metric in self._own_metrics.items():
            values = metric(tested)
            for key, value in (values if isinstance(values, Mapping) else {name: values}).items():
                number = getattr(value, "item", lambda value=value: value)()
                if not is_number(number):
                    raise ValueError(
                        f"the metric {name} returned {value!r:.100}: it must return a number, or several"
                    )
                numbers[key] = float(number)
        return numbers

    def _plain(self, state: ServerState) -> dict[str, object]:
        """Measure the model of the last round too, if the evaluated model is an average over the rounds."""
        experiment = self._experiment
        if experiment.test is None or not state.average:
            return {}
        model = EvaluatedModel(state.round, *experiment.rounds.last_model(state))
        confusion = self._on(experiment.test, model).confusion
        metrics = summarise(confusion, experiment.train_counts, experiment.config.run.shot_groups)
        return {"last_round_accuracy": metrics.test_accuracy, "last_round_few": metrics.few}

    def _evaluate_kept(self, selected: EvaluatedModel | None, last: EvaluatedModel | None) -> Evaluation | None:
        """Return that of the selected or the last evaluated round; None if this process does not have it."""
        test = self._experiment.test
        if test is not None and selected is not None:
            return self._on(test, selected)
        if test is not None and self._tested is None and last is not None:  # resumed after the last round
            return self._on(test, last)
        return self._tested

    def _on(self, samples: LabelledTensors, model: EvaluatedModel) -> Evaluation:
        network, classes = self._experiment.network, len(self._experiment.train_counts)
        return evaluate(network, model.x, model.buffers, samples.inputs, samples.labels, classes)


def find_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics of `run.metrics`: by name, as `package.module:function`, or given as functions."""
    metrics: dict[str, Metric] = {}
    for name in names:
        key = name.replace(":", ".").rpartition(".")[2]
        if isinstance(name, NamedObject):
            metrics[key] = name.value
        elif ":" in name:
            metrics[key] = resolve("metric", Component(name))
        elif name in METRICS:
            metrics[key] = METRICS[name]
        else:
            raise unknown("metric", name, METRICS)
    return metrics


def _client_accuracy(experiment: Experiment) -> ClientAccuracy | None:
    """Return how the accuracy of each client is measured: on its own test samples if they are known.

    The owners of the test samples are the clients, unless a partition made other clients of the training samples.
    """
    owners_train = bool(experiment.client_names) or experiment.config.data.test_clients is not None
    if experiment.test_clients is not None and owners_train:
        return OnOwnSamples.of(experiment.test_clients)
    counts = experiment.rounds.federation.counts
    personal = isinstance(experiment.rounds.trainer.method, PersonalModels)
    wanted = personal or "clients" in experiment.config.run.diagnostics
    return ByOwnClasses(counts, experiment.client_names) if wanted and len(counts) else None
