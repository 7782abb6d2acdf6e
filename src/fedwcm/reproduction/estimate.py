"""How long runs will take: their arithmetic, over the rate of stored runs or of a few training steps here."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.flop_counter import FlopCounterMode

from fedwcm.config.schema import Component, Config
from fedwcm.config.settings import from_settings
from fedwcm.data import DATASETS
from fedwcm.experiment.components import Components
from fedwcm.methods.fedsmoo import FedSMOO
from fedwcm.methods.mime import Mime
from fedwcm.methods.sam import SharpnessAware
from fedwcm.models import build_model
from fedwcm.reproduction.presets import Cell, class_samples
from fedwcm.reproduction.store import ResultStore

BACKWARD = 3
"""Forward and backward together cost about this many times the forward pass."""

TWO_GRADIENTS = (SharpnessAware, FedSMOO, Mime)
"""Methods that take two gradients per step."""

TEST_SAMPLES = 10_000
CALIBRATION_SECONDS = 0.3
CALIBRATION_STEP = 2e10
"""Operations of a step of the calibration at most, so that it takes part of a second with a large model too."""

GPU_RATE, GPU_STEP = 5e12, 0.01
"""An RTX 3090, the paper's card, by rule of thumb: operations a second, and seconds that a step takes at least."""


Model = tuple[str, tuple[str, tuple[tuple[str, object], ...]]]
"""A data set, and a model with its options."""


def stored_rates(store: ResultStore) -> dict[Model, float]:
    """Return the operations a second of the stored runs, the median by data set and model."""
    rates: dict[Model, list[float]] = {}
    for settings, seconds in store.run_times():
        with suppress(ValueError):  # of options that are no longer known
            config = from_settings(settings)
            if (work := _operations(config)) is not None and seconds > 0:
                rates.setdefault((config.data.dataset, _model(config.model)), []).append(work / seconds)
    return {model: statistics.median(each) for model, each in rates.items()}


def seconds_here(cells: Iterable[Cell], rates: Mapping[Model, float] | None = None) -> float | None:
    """Return the time of these runs here; None if one of the data sets or models is not known beforehand.

    Args:
        cells: the runs.
        rates: those of stored runs, of which the model of the most similar size counts; without any, the model is
            tried for some steps.
    """
    return _total(cells, lambda config: _seconds_here(config, rates or {}))


def seconds_on_gpu(cells: Iterable[Cell]) -> float | None:
    """Return the time of these runs on one GPU, by rule of thumb."""
    return _total(cells, _seconds_on_gpu)


def _total(cells: Iterable[Cell], seconds: Callable[[Config], float | None]) -> float | None:
    """Add up the runs; those that differ in the seed alone take equally long."""
    alike: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        alike.setdefault(tuple(cell.point.values()), []).append(cell)
    total = 0.0
    for group in alike.values():
        one = seconds(from_settings(group[0].settings))
        if one is None:
            return None
        total += len(group) * one
    return total


def _seconds_here(config: Config, rates: Mapping[Model, float]) -> float | None:
    work, model = _operations(config), (config.data.dataset, _model(config.model))
    if work is None:
        return None
    size = math.log(_forward_operations(*model))
    alike = min(rates, key=lambda other: abs(math.log(_forward_operations(*other)) - size), default=None)
    return work / (rates[alike] if alike is not None else _rate(*model))


def _seconds_on_gpu(config: Config) -> float | None:
    work, samples = _operations(config), _samples_a_round(config)
    if work is None or samples is None:
        return None
    return max(work / GPU_RATE, config.run.rounds * samples / config.local.batch_size * GPU_STEP)


def _operations(config: Config) -> float | None:
    samples = _samples_a_round(config)
    if samples is None:
        return None
    passes = 2 if isinstance(Components.of(config).method, TWO_GRADIENTS) else 1
    forward = _forward_operations(config.data.dataset, _model(config.model))
    evaluations = config.run.rounds / config.run.eval_every
    return forward * (config.run.rounds * samples * BACKWARD * passes + evaluations * TEST_SAMPLES)


def _samples_a_round(config: Config) -> float | None:
    """Return the samples that a round's clients see: the long tail's, times their share and the epochs."""
    largest = config.data.n_max or class_samples(config.data.dataset)
    epochs = config.local.epochs
    if largest is None or epochs is None or not isinstance(config.data.imbalance, float):
        return None
    classes = DATASETS[config.data.dataset].num_classes
    tail = sum(config.data.imbalance ** (c / (classes - 1)) for c in range(classes))
    return float(tail) * largest * config.participation.fraction * epochs


def _model(model: Component) -> tuple[str, tuple[tuple[str, object], ...]]:
    return model.name, tuple(sorted(model.options.items()))


@cache
def _forward_operations(dataset: str, model: tuple[str, tuple[tuple[str, object], ...]]) -> float:
    entry, (name, options) = DATASETS[dataset], model
    module = build_model(name, entry.input_shape, entry.num_classes, 0, **dict(options)).eval()
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module(torch.zeros(1, *entry.input_shape))
    return float(counter.get_total_flops())


@cache
def _rate(dataset: str, model: tuple[str, tuple[tuple[str, object], ...]]) -> float:
    """Return operations a second while a model of this kind trains, of the fastest of some steps."""
    entry, (name, options) = DATASETS[dataset], model
    sample = BACKWARD * _forward_operations(dataset, model)
    batch = max(2, min(50, int(CALIBRATION_STEP / sample)))
    module = build_model(name, entry.input_shape, entry.num_classes, 0, **dict(options)).train()
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as in local training
    inputs = torch.zeros(batch, *entry.input_shape).contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(batch, dtype=torch.int64)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=0.001)
    seconds: list[float] = []
    while len(seconds) < 2 or sum(seconds) < CALIBRATION_SECONDS:
        began = time.process_time()  # not the clock, or other processes would count
        optimizer.zero_grad()
        cross_entropy(module(inputs), labels).backward()
        clip_grad_norm_(module.parameters(), 10.0)
        optimizer.step()  # of a small network, this and the clipping take a third of the time
        seconds.append(time.process_time() - began)
    fastest = max(min(seconds), 1e-6) / torch.get_num_threads()  # the first warms up
    return batch * sample / fastest
