"""The server's side of a round: combine what the clients sent, and update the model."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.method import Method, mean_weights
from fedwcm.core.types import Cohort, Combination, Floats, State, Vec


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round made: the next model, buffers and state, and what is worth recording of it."""

    x: Vec
    buffers: Vec
    state: State
    weights: Floats
    diagnostics: dict[str, float]


def combine(uploads: Mapping[str, Tensor], combinations: Mapping[str, Combination]) -> State:
    """Form the named linear combinations; those of one upload share a single pass over it."""
    by_key: dict[str, list[str]] = {}
    for name, combination in combinations.items():
        by_key.setdefault(combination.key, []).append(name)
    combined: State = {}
    for key, names in by_key.items():
        rows = uploads[key]
        table = np.stack([combinations[name].weights for name in names])
        weights = torch.as_tensor(table, dtype=rows.dtype, device=rows.device)
        sums = (weights @ rows.reshape(len(rows), -1)).reshape(len(names), *rows.shape[1:])
        combined.update(zip(names, sums, strict=True))
    return combined


def update(
    method: Method, x: Vec, buffers: Vec, s: State, probed: State, uploads: State, cohort: Cohort
) -> RoundResult:
    """Aggregate the uploads (one row a client of the cohort) and let the method update the model."""
    combinations = method.combine(s, cohort)
    agg = combine(uploads, combinations)
    if len(buffers):
        averaged = Combination("buffers", mean_weights("samples", cohort))
        buffers = combine(uploads, {"buffers": averaged})["buffers"]
    x_next, s_next = method.update(x, s, {**probed, **agg}, cohort)
    return RoundResult(x_next, buffers, s_next, method.weights(s, cohort), method.diagnostics(s, cohort))
