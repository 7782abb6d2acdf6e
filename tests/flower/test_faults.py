"""Clients that fail are left out, named with the reason, and the round goes on as if they had been silent."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.message_pb2 import Context as ProtoContext

from fedwcm.experiment.progress import Silent
from fedwcm.experiment.run import Run
from fedwcm.experiment.runner import Runner
from fedwcm.flower.server.deployment import serve
from fedwcm.flower.server.directory import NodeBinding
from fedwcm.flower.untrusted import UnusableError

from ..factories import Scripted
from .federation import CLIENTS, data, grid, model, run_config, simulated, test_data
from .wire import CLOCK, RUN, SERVER, WireGrid

VICTIM, ROUND = 1, 2
EVERYBODY = list(range(CLIENTS))
OTHERS = [client for client in EVERYBODY if client != VICTIM]
FULL: dict[str, Any] = {"participation.fraction": 1.0}


def in_simulator(method: str, cohorts: list[list[int]]) -> Run:
    experiment = simulated(method, **FULL)
    rounds = replace(experiment.rounds, participation=Scripted(cohorts))  # type: ignore[arg-type]
    return Runner(replace(experiment, rounds=rounds), None, Silent()).run()


def on_flower(method: str, harm: Callable[[WireGrid], Any], **changes: Any) -> Run:
    """A run in which something happens to one client in one round."""
    config = run_config(method, **FULL, **changes)
    nodes = grid(config)
    strike = harm(nodes)

    def mischief(client: int, request: Message, reply: Message) -> Message | None:
        hit = client == VICTIM and request.metadata.group_id == str(ROUND)
        changed: Message | None = strike(request, reply) if hit else reply
        return changed

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    return finished


def assert_same_model(one: Run, other: Run) -> None:
    for name, tensor in one.model.items():
        assert torch.equal(other.model[name], tensor), name


def belated(nodes: WireGrid) -> Any:
    def strike(_: Message, reply: Message) -> None:
        nodes.delay(reply, 600.5)

    return strike


def vanished(nodes: WireGrid) -> Any:
    """The SuperLink answers in the place of a node whose heartbeat has stopped."""

    def strike(request: Message, reply: Message) -> Message:
        metadata = reply.metadata
        metadata._src_node_id = metadata._dst_node_id = SERVER  # type: ignore[attr-defined]
        return make_message(metadata=metadata, error=Error(5, "the node is unavailable"))

    return strike


FAULTS: dict[str, tuple[Callable[[WireGrid], Any], str]] = {
    "error": (
        lambda _: lambda request, __: Message(Error(2, "disk full"), reply_to=request),
        "error 2: disk full",
    ),
    "late": (belated, "no answer within 600 s"),
    "vanished": (vanished, "error 5: the node is unavailable"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_without_an_answer_is_left_out(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its own state too is what the server believes: the control variate of a lost answer does not count."""
    harm, reason = FAULTS[fault]
    finished = on_flower("scaffold", harm)
    assert_same_model(in_simulator("scaffold", [EVERYBODY, OTHERS, EVERYBODY]), finished)
    assert [record.left_out or {} for record in finished.history] == [{}, {str(VICTIM): reason}, {}]
    assert f"round {ROUND}: client {VICTIM} is left out: {reason}" in caplog.messages


def test_a_client_that_never_answers_is_not_asked_while_it_may_be_busy() -> None:
    finished = on_flower("scaffold", lambda _: lambda *__: None)
    reasons = [(record.left_out or {}).get(str(VICTIM)) for record in finished.history]
    assert reasons == [None, "no answer within 600 s", "it is still busy with round 2"]
    assert_same_model(in_simulator("scaffold", [EVERYBODY, OTHERS, OTHERS]), finished)


def test_a_straggler_is_asked_again_when_it_has_answered_or_has_had_time_enough() -> None:
    """An answer that comes 1000 s late, and one that never comes, with rounds of 600 s each."""
    config = run_config("fedavg", **FULL, **{"run.rounds": 5})
    nodes = grid(config)

    def mischief(client: int, request: Message, reply: Message) -> Message | None:
        if client == 0:  # makes every round last as long as it may
            nodes.delay(reply, 599.0)
            return None
        if client in (1, 2) and request.metadata.group_id == "1":
            if client == 1:
                nodes.delay(reply, 1000.0)
            return None
        return reply

    def only_in_rounds(client: int, request: Message, reply: Message) -> Message | None:
        return mischief(client, request, reply) if request.metadata.group_id != "0" else reply

    nodes.mischief = only_in_rounds
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    busy = [
        [client for client, why in (record.left_out or {}).items() if "busy" in why] for record in finished.history
    ]
    assert busy == [[], ["1", "2"], ["2"], [], []]


def test_a_round_closes_after_a_grace_time_when_enough_have_answered() -> None:
    config = run_config("fedavg", **FULL, **{"flower.enough": 3, "flower.grace": 20.0, "run.rounds": 1})
    nodes = grid(config)
    late = {3: 10.0, 4: 100.0}

    def mischief(client: int, request: Message, reply: Message) -> Message | None:
        if request.metadata.group_id == "0" or client not in late:
            return reply
        nodes.delay(reply, late[client])
        return None

    nodes.mischief = mischief
    before = CLOCK.now
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert finished.history[0].left_out == {"4": "no answer within 20 s"}
    assert CLOCK.now - before == pytest.approx(20.0, abs=10.0)


def test_weights_are_those_of_the_survivors() -> None:
    finished = on_flower("fedwcm", FAULTS["error"][0])
    assert_same_model(in_simulator("fedwcm", [EVERYBODY, OTHERS, EVERYBODY]), finished)


def test_a_round_with_fewer_answers_than_needed_counts_as_unanswered(caplog: pytest.LogCaptureFixture) -> None:
    finished = on_flower("scaffold", FAULTS["error"][0], **{"flower.min_clients": CLIENTS})
    assert_same_model(in_simulator("scaffold", [EVERYBODY, [], EVERYBODY]), finished)
    assert [record.participants for record in finished.history] == [CLIENTS, 0, CLIENTS]
    assert "round 2: 4 answers, 5 are needed: no step" in caplog.messages


def test_an_app_that_raises_is_left_out_with_its_message() -> None:
    config = run_config("fedavg", **FULL)
    nodes = grid(config)

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.group_id == "1" and client == VICTIM:
            nodes.node_of(VICTIM).app = other_model
        return reply

    other_model = _app_with(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    left_out: list[Any] = [record.left_out or {} for record in finished.history]
    assert "parameters, this one 650" in left_out[1][str(VICTIM)]
    assert_same_model(in_simulator("fedavg", [EVERYBODY, OTHERS, OTHERS]), finished)


def _app_with(factory: Callable[[], torch.nn.Module]) -> Any:
    from fedwcm.flower import client_app

    return client_app(model=factory, data=data)


@pytest.mark.parametrize("phase", ["train.probe", "train.train"])
def test_a_fault_in_either_phase_does_not_stop_the_other(phase: str) -> None:
    def harm(_: WireGrid) -> Any:
        failure = Error(2, "disk full")
        return lambda request, reply: (
            Message(failure, reply_to=request) if request.metadata.message_type == phase else reply
        )

    record: Any = on_flower("mime", harm).history[1]
    assert set(record.left_out) == {str(VICTIM)}
    assert record.participants == (CLIENTS if phase == "train.probe" else CLIENTS - 1)


def test_a_client_that_is_not_connected_is_left_out_and_welcome_again() -> None:
    config = run_config("scaffold", **FULL)
    nodes = grid(config)

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if client == CLIENTS - 1 and request.metadata.group_id in ("1", "2"):
            nodes.node_of(VICTIM).online = request.metadata.group_id == "2"
        return reply

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert finished.history[1].left_out == {str(VICTIM): "it is not connected"}
    assert_same_model(in_simulator("scaffold", [EVERYBODY, OTHERS, EVERYBODY]), finished)


def test_a_run_starts_without_a_client_that_never_comes_and_takes_it_when_it_does() -> None:
    config = run_config("fedwcm", **FULL)
    nodes = grid(config)
    nodes.node_of(VICTIM).online = False

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.group_id == "2":
            nodes.node_of(VICTIM).online = True
        return reply

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert [record.participants for record in finished.history] == [CLIENTS - 1, CLIENTS - 1, CLIENTS]


def test_a_run_does_not_start_with_fewer_clients_than_needed() -> None:
    config = run_config("fedwcm", **FULL, **{"flower.min_clients": CLIENTS})
    nodes = grid(config)
    nodes.node_of(VICTIM).online = False
    with pytest.raises(RuntimeError, match=r"4 clients connected within 0 s, flower.min_clients = 5 are needed"):
        serve(nodes, config, model, test_data)


def test_what_is_missing_is_said_beside_the_nodes_that_are_not_used(tmp_path: Path) -> None:
    config = run_config("fedavg", **FULL, **{"run.rounds": 1, "flower.min_clients": CLIENTS})
    nodes = grid(config)
    nodes.node_of(VICTIM).online = False
    nodes.start(0)
    reason = "nodes that are connected and not used: 1, since it claims to be client 0, but that is node"
    with pytest.raises(RuntimeError, match=f"flower.min_clients = {CLIENTS} are needed; {reason}"):
        serve(nodes, config, model, test_data)
    fewer = {**config, "flower.min_clients": CLIENTS - 1}
    finished = serve(nodes, fewer, model, test_data)
    assert finished is not None
    assert f"it is not connected; {reason}" in (finished.history[0].left_out or {})[str(VICTIM)]


def test_a_second_node_with_a_number_in_use_is_refused_and_named(caplog: pytest.LogCaptureFixture) -> None:
    config = run_config("fedwcm", **FULL)
    nodes = grid(config)
    first, second = next(iter(nodes.nodes)), nodes.start(0)
    kept, refused = min(first, second), max(first, second)
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert f"node {refused} is not used: it claims to be client 0, but that is node {kept}" in caplog.messages
    assert_same_model(in_simulator("fedwcm", [EVERYBODY] * 3), finished)


def test_a_client_belongs_to_its_first_node_if_nodes_are_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client's node stops after round 1 and another takes its number: refused; the pairs can be written."""
    config = run_config("fedavg", **FULL, **{"flower.bind_nodes": True, "flower.out": str(tmp_path)})
    nodes = grid(config)
    own = {node.client: name for name, node in nodes.nodes.items()}

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if client == CLIENTS - 1 and request.metadata.group_id == "1":
            nodes.node_of(VICTIM).online = False
            nodes.start(VICTIM)
        return reply

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert [record.participants for record in finished.history] == [CLIENTS, CLIENTS - 1, CLIENTS - 1]
    assert any(f"client {VICTIM}, which belongs to node {own[VICTIM]}" in message for message in caplog.messages)
    assert json.loads((tmp_path / "nodes.json").read_text()) == {str(c): node for c, node in own.items()}


def test_pairs_of_nodes_and_clients_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text('{"0": 11, "1": 12}')
    pairs = NodeBinding(True, tmp_path)
    pairs.claim(0, 11)
    for client, node in [(1, 13), (2, 11)]:
        with pytest.raises(UnusableError, match=f"it claims to be client {client}"):
            pairs.claim(client, node)
    (tmp_path / "nodes.json").write_text("[1]")
    with pytest.raises(ValueError, match="cannot be read"):
        NodeBinding(True, tmp_path)


def test_a_node_with_a_number_that_does_not_exist_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    config = run_config("fedavg", **FULL)
    nodes = grid(config)
    nodes.start(CLIENTS)
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert any("it claims to be client 5: 0 to 4 are allowed" in message for message in caplog.messages)
    assert sum(kind == "query.info" for _, kind, _ in nodes.log) == CLIENTS + 1


def test_a_node_that_fails_to_say_who_it_is_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwcm.flower.server.directory.RETRY_AFTER", 0.0)
    config = run_config("scaffold", **FULL)
    nodes = grid(config)
    misses = iter([True, True, True])

    def mischief(client: int, request: Message, reply: Message) -> Message | None:
        mute = request.metadata.message_type == "query.info" and client == VICTIM and next(misses, False)
        return None if mute else reply

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    participants = [record.participants for record in finished.history]
    assert participants[0] == CLIENTS - 1
    assert participants[-1] == CLIENTS


def test_a_node_that_was_renumbered_unnoticed_says_so_and_is_that_client() -> None:
    """It was away so briefly that the server has not seen it go, and it has kept its id."""
    config = run_config("fedavg", **FULL, **{"flower.clients": CLIENTS + 1, "run.rounds": 4})
    nodes = grid(config)
    last = CLIENTS - 1

    def renumber(client: int, request: Message, reply: Message) -> Message:
        if client == 0 and request.metadata.group_id == "1":
            node = nodes.node_of(last)
            context = context_from_proto(ProtoContext.FromString(node.context))
            context.node_config["partition-id"] = CLIENTS
            node.context = context_to_proto(context).SerializeToString()
        return reply

    nodes.mischief = renumber
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    reason = f"it answers for client {CLIENTS}, but was asked for {last}"
    assert reason in (finished.history[0].left_out or {})[str(last)]
    for record in finished.history[1:]:
        assert record.clients == (*range(last), CLIENTS)
        assert record.left_out == {str(last): "it is not connected"}


def test_a_node_that_comes_back_with_another_number_is_that_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """With node authentication it has the same id: the number it was first started with was a mistake."""
    config = run_config("fedavg", **FULL, **{"run.rounds": 4, "flower.clients": CLIENTS + 1})
    nodes = grid(config)
    wrong, right = 2, CLIENTS
    number, node = next((i, node) for i, node in nodes.nodes.items() if node.client == wrong)
    online = nodes.get_node_ids

    def connected() -> list[int]:
        asked = {round_ for _, _, round_ in nodes.log}
        node.online = asked != {"0", "1"}  # it is away after the first round
        if "2" in asked and node.client == wrong:
            node.client = right
            context = Context(RUN, number, {"partition-id": right}, RecordDict(), config)
            node.context = context_to_proto(context).SerializeToString()
        return online()

    monkeypatch.setattr(nodes, "get_node_ids", connected)
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    others = (0, 1, 3, 4)
    assert [record.clients for record in finished.history] == [(0, 1, 2, 3, 4), others, (*others, 5), (*others, 5)]
    assert (finished.history[-1].left_out or {}) == {"2": "it is not connected"}
