"""A server that is killed after a secure sum: the repeated round makes the same sum, or none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.client.mod import secaggplus_mod

from fedwcm.core.types import Floats
from fedwcm.experiment import evaluator
from fedwcm.experiment.run import Run
from fedwcm.flower import client_app
from fedwcm.flower.records import RequestId
from fedwcm.flower.secure.protocol import SecureSum, SecureSumError
from fedwcm.flower.secure.uploads import SumLedger

from .federation import CLIENTS, FULL, data, finish, grid, model
from .test_resume import Killed
from .wire import WireGrid


def nodes_with(folder: Path) -> WireGrid:
    secure = {"flower.secure_aggregation": True, "flower.out": str(folder), "flower.timeout": 1.0}
    app = client_app(model=model, data=data, mods=[secaggplus_mod])
    return grid("fedavg", app=app, **FULL, **secure)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The contributors of all sums that the server learns."""
    seen: list[set[int]] = []

    def unmask(secure: SecureSum) -> Floats:
        total = original(secure)
        seen.append(set(secure.contributors))
        return total

    original: Callable[[SecureSum], Floats] = SecureSum.unmask
    monkeypatch.setattr(SecureSum, "unmask", unmask)
    return seen


def killed_then_resumed(folder: Path, missing: list[int], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose server dies in round 2, when the sum is known; some clients are then missing."""
    evaluate, calls = evaluator.evaluate, [0]  # type: ignore[attr-defined]

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise Killed
        return evaluate(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "evaluate", dying)
        with pytest.raises(Killed):
            finish(nodes_with(folder))
    restarted = nodes_with(folder)
    for client in missing:
        restarted.node_of(client).online = False
    return finish(restarted)


def test_a_round_is_not_summed_again_without_a_client(
    tmp_path: Path, sums: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    everyone = set(range(CLIENTS))
    finished = killed_then_resumed(tmp_path, [3], monkeypatch)
    assert sums == [everyone, everyone, everyone - {3}], "rounds 1, 2 and 3; round 2 is not summed again"
    second, third = finished.history[1:]
    assert second.participants == 0
    assert "round 2 is repeated, and this sum had other clients" in (second.left_out or {})["0"]
    assert third.participants == CLIENTS - 1


def test_a_round_is_summed_again_over_the_same_clients(
    tmp_path: Path, sums: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = killed_then_resumed(tmp_path, [], monkeypatch)
    assert sums == [set(range(CLIENTS))] * 4
    assert [record.participants for record in finished.history] == [CLIENTS] * 3


def test_sums_are_compared_in_their_order(tmp_path: Path) -> None:
    asked, clients = RequestId("train", 4, 0, "run_id"), [0, 1, 2]
    first, second = np.array([[1.0, 0.5, 0.0]]), np.array([[0.25, 1.0, 1.0]])
    before = SumLedger(tmp_path)
    before.enter(asked, "delta", clients, first)
    before.enter(asked, "delta", clients, second)
    after = SumLedger(tmp_path)
    after.enter(asked, "delta", clients, first * (1 + 1e-15))
    with pytest.raises(SecureSumError, match="round 4 is repeated"):
        after.enter(asked, "delta", clients, first)
    after.enter(asked, "buffers", [0, 1], first[:, :2])
