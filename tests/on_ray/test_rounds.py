"""Clients on a cluster: what comes out is what one process makes, whoever trains whom."""

from typing import Any

import pytest
import torch

from fedwcm.methods import METHODS

from ..factories import clusters, make_rounds, make_trainer, mlp, play
from .conftest import ray_rounds

pytest.importorskip("ray", reason="needs fedwcm[ray]")

ROUNDS = 3


def sequential(method: Any, module: Any = mlp, data: Any = None, **options: Any) -> list[tuple[Any, Any]]:
    data = data or clusters()
    return play(make_rounds(make_trainer(method, data.federation, module()), data.federation, **options), ROUNDS)


def assert_same_up_to_rounding(played: Any, expected: Any) -> None:
    """The models of float64 to its rounding, and the records."""
    for (state, record), (same, told) in zip(played, expected, strict=True):
        torch.testing.assert_close(state.x, same.x, rtol=1e-11, atol=1e-13)
        assert record.keys() == told.keys()
        for key, value in told.items():
            assert record[key] == pytest.approx(value, rel=1e-9, abs=1e-12), key


def test_workers_make_the_model_of_one_process_and_keep_the_state_of_clients(cluster: Any) -> None:
    method = METHODS["scaffold"]()
    rounds = ray_rounds(method)
    assert_same_up_to_rounding(play(rounds, ROUNDS), sequential(method))
    assert len(rounds.store.visited()) == len(rounds.federation.samples)
