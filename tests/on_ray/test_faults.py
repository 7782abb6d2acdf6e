"""What a cluster loses in the middle of a run, or gains, does not change what comes out."""

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.core.types import Context, Report, State, Vec
from fedwcm.engine.backends.errors import WorkerDiedWarning, WorkerError
from fedwcm.engine.rounds import Rounds
from fedwcm.methods import METHODS

from ..factories import run_rounds
from ..specimens import Failing
from .conftest import ray_rounds, wait_for

ray = pytest.importorskip("ray", reason="needs fedwcm[ray]")

pytestmark = pytest.mark.slow
ROUNDS = 3
Scaffold: Any = METHODS["scaffold"]


@dataclass(frozen=True, kw_only=True)
class Noted(Scaffold):  # type: ignore[misc]
    """SCAFFOLD whose clients take their time, and note the node that they are trained on and the round."""

    folder: Path
    seconds: float = 0.0

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        for client in ctx.clients.ids:
            (self.folder / f"{ctx.round}-{client}-{node}").touch()
        time.sleep(self.seconds)
        return super().finish(w, c, ctx)


@dataclass(frozen=True, kw_only=True)
class Killed(Noted):
    """The process that trains this client in round 2 is killed, so many times."""

    client: int = 3
    times: int = 1

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        killed = len(list(self.folder.glob("killed-*")))
        if ctx.round == 1 and self.client in ctx.clients.ids and killed < self.times:
            (self.folder / f"killed-{killed}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().finish(w, c, ctx)


def same_bits(disturbed: Rounds, folder: Path) -> None:
    """Play both, the other one by a single worker that nothing happens to."""
    whole = ray_rounds(Noted(folder=folder), workers=1)
    for (one, record), (other, same) in zip(run_rounds(disturbed, ROUNDS), run_rounds(whole, ROUNDS), strict=True):
        assert torch.equal(one.x, other.x)
        assert record == same
    kept = [rounds.store.read(np.arange(5), torch.device("cpu")) for rounds in (disturbed, whole)]
    assert all(torch.equal(kept[0][key], kept[1][key]) for key in kept[1])


def test_the_clients_of_a_worker_that_is_killed_are_trained_elsewhere(cluster: Any, tmp_path: Path) -> None:
    with pytest.warns(WorkerDiedWarning, match=r"round 2, clients? .*3.*: a worker was lost"):
        same_bits(ray_rounds(Killed(folder=tmp_path)), tmp_path)


def test_a_block_that_kills_every_worker_ends_the_run(cluster: Any, tmp_path: Path) -> None:
    with (
        pytest.warns(WorkerDiedWarning),
        pytest.raises(WorkerError, match=r"round 2, client.*a worker was lost.*like 2 others"),
    ):
        run_rounds(ray_rounds(Killed(folder=tmp_path, times=3)), ROUNDS)


def test_uploads_that_are_lost_before_they_are_summed_are_made_again(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedwcm.engine.backends.on_ray.backend import Phase

    tree, killed = Phase._tree, list[Any]()

    def killing(self: Phase, *arguments: Any) -> Any:
        if not killed:
            killed.append(self._pool.members[0].actor)
            ray.kill(killed[0])
        return tree(self, *arguments)

    monkeypatch.setattr(Phase, "_tree", killing)
    with pytest.warns(WorkerDiedWarning, match="round 1"):
        same_bits(ray_rounds(Noted(folder=tmp_path)), tmp_path)


def test_a_node_that_is_lost_in_the_middle_of_a_round_costs_time_and_nothing_else(
    cluster: Any, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=2, object_store_memory=100 * 2**20)
    lost = []

    def kill() -> None:
        wait_for(lambda: any(tmp_path.glob(f"*-{node.node_id}")))
        cluster.remove_node(node, allow_graceful=False)
        lost.append(node)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.warns(WorkerDiedWarning):
        same_bits(ray_rounds(Noted(folder=tmp_path, seconds=1.0), workers=4), tmp_path)
    killer.join()
    assert lost


def test_a_node_that_joins_is_used(cluster: Any, tmp_path: Path) -> None:
    rounds = ray_rounds(Noted(folder=tmp_path, seconds=0.5), workers=0)
    try:
        state, _ = rounds.step(rounds.start(*rounds.trainer.forward.network.initial()))
        node = cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
        for _ in range(20):
            state, _ = rounds.step(state)
            if list(tmp_path.glob(f"*-{node.node_id}")):
                break
        assert list(tmp_path.glob(f"*-{node.node_id}"))
    finally:
        rounds.backend.close()
        cluster.remove_node(node)


def test_a_failure_in_a_worker_is_raised_with_its_traceback_and_nothing_stays(cluster: Any) -> None:
    from ray._private.internal_api import memory_summary

    with pytest.raises(WorkerError, match="round 1, client 3: a worker failed") as caught:
        run_rounds(ray_rounds(Failing(client=3)), 1)
    assert "client 3 cannot count" in str(caught.value)
    assert "in finish" in str(caught.value)
    wait_for(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
    del caught  # its traceback holds what the run had put into the object store
    wait_for(lambda: "0 MiB, 0 objects" in memory_summary(stats_only=True))
