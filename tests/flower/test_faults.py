"""Clients that fail are left out, named with the reason, and the round goes on as if they had been silent."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.message_pb2 import Context as ProtoContext

from fedwcm.flower import client_app
from fedwcm.flower.app.options import FlowerOptions
from fedwcm.flower.server.directory import NodeBinding
from fedwcm.flower.untrusted import UnusableError

from .federation import (
    CLIENTS,
    EVERYBODY,
    FULL,
    OTHERS,
    VICTIM,
    assert_same_model,
    data,
    finish,
    grid,
    in_simulator,
    on_flower,
)
from .wire import CLOCK, RUN, SERVER, Answer, Delayed, delay, fail, fall_silent, strike

LAST = CLIENTS - 1


def vanish(_: Message, reply: Message) -> Message:
    """The SuperLink answers in the place of a node whose heartbeat has stopped."""
    metadata = reply.metadata
    metadata._src_node_id = metadata._dst_node_id = SERVER  # type: ignore[attr-defined]
    return make_message(metadata=metadata, error=Error(5, "the node is unavailable"))


def test_a_client_without_an_answer_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Its own state too is what the server believes: the control variate of a lost answer does not count."""
    faults = {2: fail, 3: vanish, 4: delay(600.5)}
    reasons = ["error 2: disk full", "error 5: the node is unavailable", "no answer within 600 s"]

    def mischief(client: int, request: Message, reply: Message) -> Answer:
        act = faults.get(int(request.metadata.group_id)) if client == VICTIM else None
        return act(request, reply) if act else reply

    finished = on_flower("scaffold", mischief, **FULL, **{"run.rounds": 5})
    assert_same_model(in_simulator("scaffold", [EVERYBODY, *[OTHERS] * 3, EVERYBODY]), finished)
    named = [{str(VICTIM): reason} for reason in reasons]
    assert [record.left_out or {} for record in finished.history] == [{}, *named, {}]
    for round_, reason in zip(faults, reasons, strict=True):
        assert f"round {round_}: client {VICTIM} is left out: {reason}" in caplog.messages


def test_a_client_that_never_answers_is_not_asked_while_it_may_be_busy() -> None:
    finished = on_flower("scaffold", strike(fall_silent, {VICTIM}, rounds={2}), **FULL)
    reasons = [(record.left_out or {}).get(str(VICTIM)) for record in finished.history]
    assert reasons == [None, "no answer within 600 s", "it is still busy with round 2"]
    assert_same_model(in_simulator("scaffold", [EVERYBODY, OTHERS, OTHERS]), finished)


def test_a_straggler_is_asked_again_when_it_has_answered_or_has_had_time_enough() -> None:
    """An answer that comes 1000 s late, and one that never comes, with rounds of 600 s each."""

    def mischief(client: int, request: Message, reply: Message) -> Answer:
        round_ = request.metadata.group_id
        if client == 0 and round_ != "0":  # makes every round last as long as it may
            return Delayed(reply, 599.0)
        if client in (1, 2) and round_ == "1":
            return Delayed(reply, 1000.0) if client == 1 else None
        return reply

    finished = on_flower("fedavg", mischief, **FULL, **{"run.rounds": 5})
    busy = [[c for c, why in (record.left_out or {}).items() if "busy" in why] for record in finished.history]
    assert busy == [[], ["1", "2"], ["2"], [], []]


def test_a_round_closes_after_a_grace_time_when_enough_have_answered() -> None:
    late = {3: 10.0, 4: 100.0}

    def mischief(client: int, request: Message, reply: Message) -> Answer:
        in_time = request.metadata.group_id == "0" or client not in late
        return reply if in_time else Delayed(reply, late[client])

    before = CLOCK.now
    hurried = {"flower.enough": 3, "flower.grace": 20.0, "run.rounds": 1}
    finished = on_flower("fedavg", mischief, **FULL, **hurried)
    assert finished.history[0].left_out == {"4": "no answer within 20 s"}
    assert CLOCK.now - before == pytest.approx(20.0, abs=10.0)


def test_a_round_with_fewer_answers_than_needed_counts_as_unanswered(caplog: pytest.LogCaptureFixture) -> None:
    harm = strike(fail, {VICTIM}, rounds={2})
    finished = on_flower("scaffold", harm, **FULL, **{"flower.min_clients": CLIENTS})
    assert_same_model(in_simulator("scaffold", [EVERYBODY, [], EVERYBODY]), finished)
    assert [record.participants for record in finished.history] == [CLIENTS, 0, CLIENTS]
    assert "round 2: 4 answers, 5 are needed: no step" in caplog.messages


def test_an_app_that_raises_is_left_out_with_its_message() -> None:
    def other_model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    nodes = grid("fedavg", **FULL)

    def change_app(_: Message, reply: Message) -> Message:
        nodes.node_of(VICTIM).app = client_app(model=other_model, data=data)
        return reply

    nodes.mischief = strike(change_app, {VICTIM}, rounds={1})
    finished = finish(nodes)
    assert "parameters, this one 650" in (finished.history[1].left_out or {})[str(VICTIM)]
    assert_same_model(in_simulator("fedavg", [EVERYBODY, OTHERS, OTHERS]), finished)


def test_a_fault_in_either_phase_does_not_stop_the_other() -> None:
    def mischief(client: int, request: Message, reply: Message) -> Message:
        where = request.metadata.message_type, request.metadata.group_id
        hit = client == VICTIM and where in (("train.probe", "2"), ("train.train", "3"))
        return fail(request, reply) if hit else reply

    _, *history = on_flower("mime", mischief, **FULL).history
    assert [set(record.left_out or ()) for record in history] == [{str(VICTIM)}] * 2
    assert [record.participants for record in history] == [CLIENTS, CLIENTS - 1]


def test_a_client_that_is_not_connected_is_left_out_and_welcome_again() -> None:
    nodes = grid("scaffold", **FULL)

    def come_and_go(request: Message, reply: Message) -> Message:
        nodes.node_of(VICTIM).online = request.metadata.group_id == "2"
        return reply

    nodes.mischief = strike(come_and_go, {LAST}, rounds={1, 2})
    finished = finish(nodes)
    assert finished.history[1].left_out == {str(VICTIM): "it is not connected"}
    assert_same_model(in_simulator("scaffold", [EVERYBODY, OTHERS, EVERYBODY]), finished)


def test_a_run_starts_without_a_client_that_never_comes_and_takes_it_when_it_does() -> None:
    nodes = grid("fedwcm", **FULL)
    nodes.node_of(VICTIM).online = False

    def come(_: Message, reply: Message) -> Message:
        nodes.node_of(VICTIM).online = True
        return reply

    nodes.mischief = strike(come, rounds={2})
    assert [record.participants for record in finish(nodes).history] == [CLIENTS - 1, CLIENTS - 1, CLIENTS]


def test_what_is_missing_is_said_beside_the_nodes_that_are_not_used() -> None:
    nodes = grid("fedavg", **FULL, **{"run.rounds": 1, "flower.min_clients": CLIENTS})
    nodes.node_of(VICTIM).online = False
    nodes.start(0)
    reason = "nodes that are connected and not used: 1, since it claims to be client 0, but that is node"
    needed = f"4 clients connected within 0 s, flower.min_clients = {CLIENTS} are needed; {reason}"
    with pytest.raises(RuntimeError, match=needed):
        finish(nodes)
    (record,) = finish(nodes, **{"flower.min_clients": CLIENTS - 1}).history
    assert f"it is not connected; {reason}" in (record.left_out or {})[str(VICTIM)]


def test_a_second_node_with_a_number_in_use_is_refused_and_named(caplog: pytest.LogCaptureFixture) -> None:
    nodes = grid("fedwcm", **FULL)
    first, second = next(iter(nodes.nodes)), nodes.start(0)
    kept, refused = min(first, second), max(first, second)
    finished = finish(nodes)
    assert f"node {refused} is not used: it claims to be client 0, but that is node {kept}" in caplog.messages
    assert_same_model(in_simulator("fedwcm", **FULL), finished)


def test_a_client_belongs_to_its_first_node_also_while_that_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client's node stops after round 1 and another takes its number: refused; the pairs can be written."""
    assert FlowerOptions().bind_nodes
    nodes = grid("fedavg", **FULL, **{"flower.bind_nodes": True, "flower.out": str(tmp_path)})
    own = {node.client: name for name, node in nodes.nodes.items()}

    def take_over(_: Message, reply: Message) -> Message:
        nodes.replace(VICTIM)
        return reply

    nodes.mischief = strike(take_over, {LAST}, rounds={1})
    finished = finish(nodes)
    assert [record.participants for record in finished.history] == [CLIENTS, CLIENTS - 1, CLIENTS - 1]
    assert any(f"client {VICTIM}, which belongs to node {own[VICTIM]}" in message for message in caplog.messages)
    assert "which belongs to node" in (finished.history[-1].left_out or {})[str(VICTIM)]
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
    nodes = grid("fedavg", **FULL)
    nodes.start(CLIENTS)
    finish(nodes)
    assert any("it claims to be client 5: 0 to 4 are allowed" in message for message in caplog.messages)
    assert sum(kind == "query.info" for _, kind, _ in nodes.log) == CLIENTS + 1


def test_a_node_that_fails_to_say_who_it_is_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwcm.flower.server.directory.RETRY_AFTER", 0.0)
    misses = iter([True, True, True])
    mute = strike(lambda _, reply: None if next(misses, False) else reply, {VICTIM}, "query.info")
    first, *_, last = on_flower("scaffold", mute, **FULL).history
    assert (first.participants, last.participants) == (CLIENTS - 1, CLIENTS)


def test_a_node_that_was_renumbered_unnoticed_says_so_and_is_that_client() -> None:
    """It was away so briefly that the server has not seen it go, and it has kept its id."""
    nodes = grid("fedavg", **FULL, **{"flower.clients": CLIENTS + 1, "run.rounds": 4})

    def renumber(_: Message, reply: Message) -> Message:
        node = nodes.node_of(LAST)
        context = context_from_proto(ProtoContext.FromString(node.context))
        context.node_config["partition-id"] = CLIENTS
        node.context = context_to_proto(context).SerializeToString()
        return reply

    nodes.mischief = strike(renumber, {0}, rounds={1})
    first, *later = finish(nodes).history
    reason = f"it answers for client {CLIENTS}, but was asked for {LAST}"
    assert reason in (first.left_out or {})[str(LAST)]
    for record in later:
        assert record.clients == (*range(LAST), CLIENTS)
        assert record.left_out == {str(LAST): "it is not connected"}


def test_a_node_that_comes_back_with_another_number_is_that_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """With node authentication it has the same id: the number it was first started with was a mistake."""
    nodes = grid("fedavg", **FULL, **{"run.rounds": 4, "flower.clients": CLIENTS + 1})
    wrong, right = 2, CLIENTS
    number, node = next((i, node) for i, node in nodes.nodes.items() if node.client == wrong)
    online = nodes.get_node_ids

    def connected() -> list[int]:
        asked = {round_ for _, _, round_ in nodes.log}
        node.online = asked != {"0", "1"}  # it is away after the first round
        if "2" in asked and node.client == wrong:
            node.client = right
            context = Context(RUN, number, {"partition-id": right}, RecordDict(), nodes.run_config)
            node.context = context_to_proto(context).SerializeToString()
        return online()

    monkeypatch.setattr(nodes, "get_node_ids", connected)
    finished = finish(nodes)
    others: Any = (0, 1, 3, 4)
    assert [record.clients for record in finished.history] == [(0, 1, 2, 3, 4), others, (*others, 5), (*others, 5)]
    assert (finished.history[-1].left_out or {}) == {"2": "it is not connected"}
