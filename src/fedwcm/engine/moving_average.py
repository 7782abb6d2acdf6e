"""A moving average of the global model over the rounds, evaluated and handed over instead of the last model.

With x_1, …, x_t the models after each round and d the decay (`server.ema`),

    a_t = Σ_i d^(t−i) x_i / Σ_i d^(t−i)  =  a_{t−1} + c_t (x_t − a_{t−1}),      c_t = (1 − d) / (1 − d^t)

The weights sum to 1 from the first round on, so that the initial model never counts. BatchNorm's buffers are
averaged in the same way. Clients never see the average: training is the same with and without it.
"""

import torch

from fedwcm.core.types import State, Vec


def moving_average(average: State, x: Vec, buffers: Vec, round_: int, decay: float) -> State:
    """Return the average after this round, the first being 1; nothing without a decay."""
    if not decay:
        return {}
    weight = (1.0 - decay) / (1.0 - decay**round_)
    current = {"x": x, "buffers": buffers}
    return {key: torch.lerp(average.get(key, value), value, weight) for key, value in current.items()}
