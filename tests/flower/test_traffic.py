"""What goes over the wire: for FedWCM two models down and one up, in float32, and little else."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedwcm.flower import client_app
from fedwcm.flower.server.deployment import serve
from fedwcm.models.mlp import MLP

from .federation import CLIENTS, data, run_config, test_data
from .wire import WireGrid

FLOAT = 4


def model() -> MLP:
    return MLP((1, 8, 8), 10, hidden=(128,))


@pytest.mark.parametrize(("method", "down", "up"), [("fedavg", 1, 1), ("fedwcm", 2, 1), ("scaffold", 2, 1)])
def test_the_bytes_of_a_round_are_those_of_the_models_within_5_percent(method: str, down: int, up: int) -> None:
    config = run_config(method, **{"participation.fraction": 1.0})
    nodes = WireGrid(client_app(model=model, data=data), config, CLIENTS)
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    parameters = sum(p.numel() for p in model().parameters())
    for record in finished.history:
        name = f"train.train {record.round}"
        assert nodes.down[name] / (CLIENTS * parameters * FLOAT) == pytest.approx(down, rel=0.05)
        assert nodes.up[name] / (CLIENTS * parameters * FLOAT) == pytest.approx(up, rel=0.05)
        # What the metrics say is the models alone; no message is shorter.
        assert 0.95 * nodes.down[name] < record.bytes_down < nodes.down[name]
        assert 0.95 * nodes.up[name] < record.bytes_up < nodes.up[name]


def test_vectors_travel_in_float32() -> None:
    config = run_config("fedwcm")
    nodes = WireGrid(client_app(model=model, data=data), config, CLIENTS)
    seen: set[Any] = set()

    def watch(_: int, request: Message, reply: Message) -> Message:
        for message in (request, reply):
            for record in message.content.array_records.values():
                seen.update(a.numpy().dtype for a in record.values() if a.numpy().size > 1)
        return reply

    nodes.mischief = watch
    serve(nodes, config, model, test_data)
    assert seen == {np.dtype(np.float32)}
