"""Servers and nodes that are killed: a run goes on as if nothing had happened, whatever the method keeps where."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message

from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.lock import FolderInUseError, locked
from fedwcm.experiment.model_file import read_model
from fedwcm.experiment.run import Run
from fedwcm.flower.client.state import state_after, with_next
from fedwcm.flower.server.deployment import serve
from fedwcm.flower.server.setup import FederationSetup
from tests.records import timeless

from .federation import (
    CLIENTS,
    FULL,
    VICTIM,
    assert_same_model,
    finish,
    grid,
    in_simulator,
    model,
    on_flower,
    test_data,
)
from .wire import WireGrid, strike


class Killed(BaseException):
    """What a kill looks like from inside: nothing is caught, nothing is cleaned up."""


def die(_: Message, __: Message) -> None:
    raise Killed


def kill_in(nodes: WireGrid, round_: int, client: int) -> None:
    """Let the server die in this round, when some clients have trained and others have not."""
    nodes.mischief = strike(die, {client}, rounds={round_})
    with pytest.raises(Killed):
        finish(nodes)


def assert_same(one: Run, other: Run) -> None:
    assert_same_model(one, other)
    for ours, theirs in zip(timeless(one.history), timeless(other.history), strict=True):
        assert ours == {key: theirs[key] for key in ours}


@pytest.mark.parametrize(
    ("method", "round_"),
    [
        *((method, 2) for method in ("fedwcm", "scaffold", "feddyn", "fedsmoo", "mime", "fedgrab")),
        *(("fedwcm", 1), ("scaffold", 1), ("scaffold", 3)),
    ],
)
def test_a_server_that_is_killed_goes_on_as_if_it_had_not_been(method: str, round_: int, tmp_path: Path) -> None:
    """The model, the whole history (alpha and momentum are in it) and every client's own state are the same."""
    options = {"flower.out": str(tmp_path / "run"), "node": {"state-dir": str(tmp_path / "state")}}
    kill_in(grid(method, **FULL, **options), round_, client=3)
    restarted = grid(method, **FULL, **options)
    assert_same(in_simulator(method, **FULL), finish(restarted))
    assert not restarted.kinds() & {"query.counts", "query.statistics"}
    assert {round_name for _, _, round_name in restarted.log if round_name != "0"} == {
        str(number) for number in range(round_, 4)
    }


def test_the_folder_holds_what_any_run_s_folder_holds(tmp_path: Path) -> None:
    finished, folder = on_flower("fedwcm", **{"flower.out": str(tmp_path)}), RunFolder(tmp_path)
    assert folder.metrics() == finished.history
    assert folder.summary() == finished.summary
    assert folder.summary().backend == "flower"
    assert list(folder.summary().train_counts) == FederationSetup.read(tmp_path).totals.tolist()
    saved = read_model(folder)
    for name, tensor in finished.model.items():
        assert torch.equal(saved[name], tensor)
    assert folder.config().method.name == "fedwcm"
    again = grid("fedwcm", **{"flower.out": str(tmp_path)})
    assert serve(again, again.run_config, model, test_data) is None, "a finished run is not played again"
    assert again.log == []


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FolderInUseError, match="is in use by process"):
        on_flower("fedavg", **{"flower.out": str(tmp_path)})


def test_a_run_is_not_continued_with_other_options(tmp_path: Path) -> None:
    options = {**FULL, "flower.out": str(tmp_path)}
    kill_in(grid("fedavg", **options), 2, client=0)
    with pytest.raises(ValueError, match=r"local.lr: 0.05 is now 0.5"):
        on_flower("fedavg", **options, **{"local.lr": 0.5})


def test_a_server_without_test_data_records_its_rounds_and_hands_over_the_model(tmp_path: Path) -> None:
    finished = finish(grid("fedwcm", **{"flower.out": str(tmp_path)}), evaluate=None)
    assert [record.round for record in RunFolder(tmp_path).metrics()] == [1, 2, 3]
    assert all(record.train_loss and record.test_accuracy is None for record in finished.history)
    assert RunFolder(tmp_path).report_file.exists()
    assert_same_model(in_simulator("fedwcm"), finished)


def with_a_restarted_node(node: dict[str, Any]) -> Run:
    """A SuperNode is stopped after round 1, and another is started in its place, with another id."""
    nodes = grid("scaffold", **FULL, node=node)

    def restart(_: Message, reply: Message) -> Message:
        nodes.replace(VICTIM)
        return reply

    nodes.mischief = strike(restart, {CLIENTS - 1}, rounds={1})
    return finish(nodes)


def test_client_state_in_a_folder_survives_a_restart_of_the_node_and_is_of_one_run(tmp_path: Path) -> None:
    node, expected = {"state-dir": str(tmp_path)}, in_simulator("scaffold", **FULL)
    assert_same(expected, with_a_restarted_node(node))
    files = sorted(path.name.rpartition("-")[0] for path in tmp_path.iterdir())
    assert files == [f"client-{client}" for client in range(CLIENTS)]
    assert_same(expected, finish(grid("scaffold", **FULL, node=node)))
    assert len(list(tmp_path.iterdir())) == 2 * CLIENTS, "runs share a folder without sharing state"


def test_client_state_in_the_context_is_lost_with_the_node_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    finished = with_a_restarted_node({})
    assert "client 1 has lost its state of round 1: it starts afresh" in caplog.messages
    assert not torch.equal(finished.model["head.weight"], in_simulator("scaffold", **FULL).model["head.weight"])


def test_the_state_is_that_of_the_last_answer_that_was_used() -> None:
    fresh, first, second = ({"c": torch.tensor([float(value)])} for value in range(3))
    kept = with_next(with_next({}, 0, 1, first), 1, 4, second)
    assert state_after(kept, 4, fresh, 0) is second
    assert state_after(kept, 1, fresh, 0) is first
    assert state_after(kept, 0, fresh, 0) is fresh
    assert set(with_next(kept, 4, 5, first)) == {4, 5}
    assert set(with_next(kept, 1, 4, first)) == {1, 4}


def test_clients_that_die_at_random_lose_no_round_and_count_no_update_twice(tmp_path: Path) -> None:
    """Twenty rounds in which every client dies one time in five: before its work, or after it, its answer lost.

    It comes back under another node id. SCAFFOLD's sums agree with the simulator's only if every answer is used
    once, and both sides know which.
    """
    nodes = grid("scaffold", **FULL, **{"run.rounds": 20, "node": {"state-dir": str(tmp_path)}})
    rng = random.Random(3)
    away: dict[int, int] = {}

    def mischief(client: int, request: Message, reply: Message) -> Message | None:
        round_ = int(request.metadata.group_id)
        for dead in [dead for dead, until in away.items() if until <= round_]:
            nodes.start(dead)
            del away[dead]
        if round_ == 0 or rng.random() > 0.2:
            return reply
        nodes.node_of(client).online = False
        away[client] = round_ + 2
        return Message(Error(5, "the node is unavailable"), reply_to=request) if rng.random() < 0.5 else None

    nodes.mischief = mischief
    finished = finish(nodes)
    cohorts = [list(record.clients or ()) for record in finished.history]
    assert [record.round for record in finished.history] == list(range(1, 21))
    assert any(len(cohort) < CLIENTS for cohort in cohorts)
    assert_same_model(in_simulator("scaffold", cohorts), finished)
