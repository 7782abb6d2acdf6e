"""What goes over the wire: for FedWCM two models down and one up, in float32, and little else."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedwcm.flower import client_app
from fedwcm.models.mlp import MLP

from .federation import CLIENTS, FULL, data, finish, grid
from .wire import strike

FLOAT = 4


def model() -> MLP:
    return MLP((1, 8, 8), 10, hidden=(128,))


@pytest.mark.parametrize(("method", "down", "up"), [("fedavg", 1, 1), ("fedwcm", 2, 1), ("scaffold", 2, 1)])
def test_the_bytes_of_a_round_are_those_of_the_models_within_5_percent(method: str, down: int, up: int) -> None:
    nodes = grid(method, **FULL, app=client_app(model=model, data=data))
    finished = finish(nodes, model)
    parameters = sum(p.numel() for p in model().parameters())
    for record in finished.history:
        name = f"train.train {record.round}"
        assert nodes.down[name] / (CLIENTS * parameters * FLOAT) == pytest.approx(down, rel=0.05)
        assert nodes.up[name] / (CLIENTS * parameters * FLOAT) == pytest.approx(up, rel=0.05)
        # What the metrics say is the models alone; no message is shorter.
        assert 0.95 * nodes.down[name] < record.bytes_down < nodes.down[name]
        assert 0.95 * nodes.up[name] < record.bytes_up < nodes.up[name]


def test_vectors_travel_in_float32() -> None:
    seen: set[Any] = set()

    def watch(request: Message, reply: Message) -> Message:
        for message in (request, reply):
            for record in message.content.array_records.values():
                seen.update(a.numpy().dtype for a in record.values() if a.numpy().size > 1)
        return reply

    finish(grid("fedwcm", strike(watch), app=client_app(model=model, data=data)), model)
    assert seen == {np.dtype(np.float32)}
