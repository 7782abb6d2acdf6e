"""A negative variance of BatchNorm, which no training gives, enters no model and leaves no honest client."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.mod import LocalDpMod
from torch import nn

from fedwcm.experiment.run import Run
from fedwcm.flower import client_app

from .federation import CLIENTS, FULL, data, finish, grid
from .wire import Mischief, edit, honest

LIAR = 2


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


def run_federation(mischief: Any = honest, mods: Any = (), **changes: Any) -> Run:
    app = client_app(model=with_batch_norm, data=data, mods=mods)
    nodes = grid("fedavg", mischief, app=app, **{**FULL, "run.rounds": 2, **changes})
    return finish(nodes, with_batch_norm)


def change_buffers(change: Callable[[Any], Any]) -> Mischief:
    """One client sends other means and variances of BatchNorm than its own."""

    def lie(content: RecordDict) -> None:
        upload = content.array_records["upload"]
        upload["buffers"] = Array(change(upload["buffers"].numpy()))

    return edit(lie, {LIAR}, "train.train")


def test_a_client_with_a_negative_variance_is_left_out_and_the_run_goes_on() -> None:
    negative = np.full(8, -50.0, dtype=np.float32)
    finished = run_federation(change_buffers(lambda own: np.concatenate([own[:8], negative])))
    reason = "its upload 'buffers' has -50 in '2.running_var': a variance must be 0 or more"
    assert [record.left_out for record in finished.history] == [{str(LIAR): reason}] * 2
    assert all(record.participants == CLIENTS - 1 for record in finished.history)


def test_statistics_that_are_a_hundred_times_too_large_do_not_blind_the_model() -> None:
    """They are no increment of the model, and enter it by the same bound."""
    inflate = change_buffers(lambda own: 100 * own)
    fooled, usual = (run_federation(mischief, **{"run.rounds": 4}) for mischief in (inflate, honest))
    assert all(record.participants == CLIENTS for record in fooled.history)
    lies, truth = fooled.model["2.running_var"], usual.model["2.running_var"]
    assert float((lies / truth).max()) < 5
    assert (fooled.history[-1].test_accuracy or 0) > (usual.history[-1].test_accuracy or 0) - 0.1


@pytest.mark.parametrize("secure", [False, True])
def test_noise_makes_no_variance_negative(secure: bool) -> None:
    np.random.seed(0)  # noqa: NPY002  Flower's mod draws from the global generator
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    secured: dict[str, Any] = {"flower.secure_aggregation": secure, "flower.secure_range": 1000.0}
    finished = run_federation(mods=[secaggplus_mod, noise] if secure else [noise], **(secured if secure else {}))
    assert [record.left_out for record in finished.history] == [None, None]
    assert float(finished.model["2.running_var"].min()) >= 0
