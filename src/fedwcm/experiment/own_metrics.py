"""The metrics of `run.metrics`: found by their names, and measured after a round."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import torch
from torch import nn

from fedwcm.config.options import NamedObject
from fedwcm.config.resolve import resolve
from fedwcm.config.schema import Component
from fedwcm.core.checks import unknown
from fedwcm.core.types import Vec
from fedwcm.engine.evaluate import predict_chunks
from fedwcm.experiment.build import Experiment
from fedwcm.metrics.own import METRICS, Evaluated, Metric
from fedwcm.models.predictor import predictor
from fedwcm.utils.json_record import is_number


def find_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics that are meant: by name, as `package.module:function`, or given as functions."""
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


def measure_own(
    metrics: Mapping[str, Metric], experiment: Experiment, round_: int, x: Vec, buffers: Vec, folder: Path | None
) -> dict[str, float]:
    """Return the numbers of the metrics on the test data."""
    test, network = experiment.test, experiment.network
    assert test is not None

    def make_model() -> nn.Module:
        model = deepcopy(network.module)
        model.load_state_dict(network.state_dict(x, buffers), strict=False)
        return predictor(model, experiment.facts)

    logits = torch.cat(list(predict_chunks(network, x, buffers, test.inputs))).float().cpu().numpy()
    labels = test.labels.cpu().numpy()
    tested = Evaluated(round_, labels, logits, experiment.train_counts, test.inputs, folder, make_model)
    numbers: dict[str, float] = {}
    for name, metric in metrics.items():
        values = metric(tested)
        for key, value in (values if isinstance(values, Mapping) else {name: values}).items():
            if not is_number(plain := getattr(value, "item", lambda value=value: value)()):
                raise ValueError(f"the metric {name} returned {value!r:.100}: it must return a number, or several")
            numbers[key] = float(plain)
    return numbers
