"""A moving average of the global model over the rounds, evaluated and handed over instead of the last model.

With x_1, …, x_t the models after each round and d the decay (`server.ema`),

    a_t = Σ_i d^(t−i) x_i / W_t  =  a_{t−1} + (x_t − a_{t−1}) / W_t,      W_t = Σ_i d^(t−i) = d W_{t−1} + 1

The weights sum to 1 from the first round on, so that the initial model never counts: the first round is the first
that a client answered. BatchNorm's buffers are averaged in the same way. Clients never see the average, so
training is the same with and without it.
"""

import torch

from fedwcm.core.types import State, Vec


def moving_average(average: State, x: Vec, buffers: Vec, decay: float) -> State:
    """Return the average after another round, with W_t beside it."""
    total = decay * float(average.get("total", 0.0)) + 1.0
    current = {"x": x, "buffers": buffers}
    mean = {key: torch.lerp(average.get(key, value), value, 1.0 / total) for key, value in current.items()}
    return {**mean, "total": torch.tensor(total, dtype=torch.float64)}
