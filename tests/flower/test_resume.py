"""Servers and nodes that are killed: a run goes on as if nothing had happened, whatever the method keeps where."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message

from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.lock import FolderInUseError, locked
from fedwcm.experiment.model_file import read_model
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.run import Run
from fedwcm.experiment.runner import Runner
from fedwcm.flower.client.state import state_after, with_next
from fedwcm.flower.server.deployment import serve
from fedwcm.flower.server.setup import FederationSetup
from tests.records import timeless

from ..factories import Scripted
from .federation import CLIENTS, grid, in_simulator, model, run_config, simulated, test_data
from .wire import WireGrid

FULL: dict[str, Any] = {"participation.fraction": 1.0}


class Killed(BaseException):
    """What a kill looks like from inside: nothing is caught, nothing is cleaned up."""


def killed_in(nodes: WireGrid, round_: int, client: int) -> None:
    """The server dies in this round, when some clients have trained and others have not."""

    def mischief(victim: int, request: Message, reply: Message) -> Message:
        if (victim, request.metadata.group_id) == (client, str(round_)):
            raise Killed
        return reply

    nodes.mischief = mischief


def finish(nodes: WireGrid, config: dict[str, Any]) -> Run:
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    return finished


def assert_same(one: Run, other: Run) -> None:
    for name, tensor in one.model.items():
        assert torch.equal(other.model[name], tensor), name
    for ours, theirs in zip(timeless(one.history), timeless(other.history), strict=True):
        assert ours == {key: theirs[key] for key in ours}


@pytest.mark.parametrize("method", ["fedwcm", "scaffold", "feddyn", "fedsmoo", "mime", "fedgrab"])
@pytest.mark.parametrize("round_", [1, 2, 3])
def test_a_server_that_is_killed_goes_on_as_if_it_had_not_been(method: str, round_: int, tmp_path: Path) -> None:
    """The model, the whole history (alpha and momentum are in it) and every client's own state are the same."""
    config = run_config(method, **FULL, **{"flower.out": str(tmp_path / "run")})
    nodes = grid(config, **{"state-dir": str(tmp_path / "state")})
    killed_in(nodes, round_, client=3)
    with pytest.raises(Killed):
        serve(nodes, config, model, test_data)
    restarted = grid(config, **{"state-dir": str(tmp_path / "state")})
    assert_same(in_simulator(method, **FULL), finish(restarted, config))
    kinds = [kind for _, kind, _ in restarted.log]
    assert "query.counts" not in kinds
    assert "query.statistics" not in kinds
    assert {round_name for _, _, round_name in restarted.log if round_name != "0"} == {
        str(number) for number in range(round_, 4)
    }


def test_the_folder_holds_what_any_run_s_folder_holds(tmp_path: Path) -> None:
    config = run_config("fedwcm", **{"flower.out": str(tmp_path)})
    finished = finish(grid(config), config)
    folder = RunFolder(tmp_path)
    assert folder.metrics() == finished.history
    assert folder.summary() == finished.summary
    assert folder.summary().backend == "flower"
    assert list(folder.summary().train_counts) == FederationSetup.read(tmp_path).totals.tolist()
    saved = read_model(folder)
    for name, tensor in finished.model.items():
        assert torch.equal(saved[name], tensor)
    assert folder.config().method.name == "fedwcm"


def test_a_finished_run_is_not_played_again(tmp_path: Path) -> None:
    config = run_config("fedavg", **{"flower.out": str(tmp_path)})
    finish(grid(config), config)
    again = grid(config)
    assert serve(again, config, model, test_data) is None
    assert again.log == []


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    config = run_config("fedavg", **{"flower.out": str(tmp_path)})
    with locked(tmp_path), pytest.raises(FolderInUseError, match="is in use by process"):
        serve(grid(config), config, model, test_data)


def test_a_run_is_not_continued_with_other_options(tmp_path: Path) -> None:
    config = run_config("fedavg", **{"flower.out": str(tmp_path)})
    nodes = grid(config)
    killed_in(nodes, 2, client=0)
    with pytest.raises(Killed):
        serve(nodes, {**config, **FULL}, model, test_data)
    with pytest.raises(ValueError, match=r"local.lr: 0.05 is now 0.5"):
        serve(grid(config), {**config, **FULL, "local.lr": 0.5}, model, test_data)


def test_a_server_without_test_data_records_its_rounds_and_hands_over_the_model(tmp_path: Path) -> None:
    config = run_config("fedwcm", **{"flower.out": str(tmp_path)})
    finished = serve(grid(config), config, model)
    assert finished is not None
    assert [record.round for record in RunFolder(tmp_path).metrics()] == [1, 2, 3]
    assert all(record.train_loss and record.test_accuracy is None for record in finished.history)
    assert RunFolder(tmp_path).report_file.exists()
    expected = in_simulator("fedwcm")
    for name, tensor in expected.model.items():
        assert torch.equal(finished.model[name], tensor)


def restarting(nodes: WireGrid, client: int) -> None:
    """A SuperNode is stopped after round 1, and another is started in its place, with another id."""

    def mischief(asked: int, request: Message, reply: Message) -> Message:
        if asked == CLIENTS - 1 and request.metadata.group_id == "1":
            nodes.node_of(client).online = False
            nodes.start(client)
        return reply

    nodes.mischief = mischief


def test_client_state_in_a_folder_survives_a_restart_of_the_node(tmp_path: Path) -> None:
    config = run_config("scaffold", **FULL)
    nodes = grid(config, **{"state-dir": str(tmp_path)})
    restarting(nodes, client=1)
    assert_same(in_simulator("scaffold", **FULL), finish(nodes, config))
    files = sorted(path.name.rpartition("-")[0] for path in tmp_path.iterdir())
    assert files == [f"client-{client}" for client in range(CLIENTS)]


def test_client_state_in_the_context_is_lost_with_the_node_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    config = run_config("scaffold", **FULL)
    nodes = grid(config)
    restarting(nodes, client=1)
    finished = finish(nodes, config)
    assert "client 1 has lost its state of round 1: it starts afresh" in caplog.messages
    assert not torch.equal(finished.model["head.weight"], in_simulator("scaffold", **FULL).model["head.weight"])


def test_two_runs_share_a_state_folder_without_sharing_state(tmp_path: Path) -> None:
    config = run_config("scaffold", **FULL)
    expected = in_simulator("scaffold", **FULL)
    for _ in range(2):
        assert_same(expected, finish(grid(config, **{"state-dir": str(tmp_path)}), config))
    assert len(list(tmp_path.iterdir())) == 2 * CLIENTS


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
    config = run_config("scaffold", **FULL, **{"run.rounds": 20})
    nodes = grid(config, **{"state-dir": str(tmp_path)})
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
    finished = finish(nodes, config)
    cohorts = [list(record.clients or ()) for record in finished.history]
    assert [record.round for record in finished.history] == list(range(1, 21))
    assert any(len(cohort) < CLIENTS for cohort in cohorts)
    experiment = simulated("scaffold", **FULL, **{"run.rounds": 20})
    rounds = replace(experiment.rounds, participation=Scripted(cohorts))  # type: ignore[arg-type]
    expected = Runner(replace(experiment, rounds=rounds), None, Silent()).run()
    for name, tensor in expected.model.items():
        assert torch.equal(finished.model[name], tensor), name
