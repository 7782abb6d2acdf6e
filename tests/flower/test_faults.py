"""Clients that fail are left out, named with the reason, and the round goes on as if they had been silent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import make_message

from fedwcm.flower.server import serve
from fedwcm.runs.progress import Silent
from fedwcm.runs.runner import Runner, RunResult

from ..factories import Scripted
from .federation import CLIENTS, grid, model, run_config, simulated, test_data
from .wire import SERVER, WireGrid

VICTIM, ROUND = 1, 2
EVERYBODY = list(range(CLIENTS))
OTHERS = [client for client in EVERYBODY if client != VICTIM]
FULL: dict[str, Any] = {"participation.fraction": 1.0}


def in_simulator(method: str, cohorts: list[list[int]]) -> RunResult:
    experiment = simulated(method, **FULL)
    rounds = replace(experiment.rounds, participation=Scripted(cohorts))  # type: ignore[arg-type]
    return Runner(replace(experiment, rounds=rounds), None, Silent()).run()


def on_flower(method: str, harm: Callable[[WireGrid], Any], **changes: Any) -> RunResult:
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


def assert_same_model(one: RunResult, other: RunResult) -> None:
    for name, tensor in one.model.items():
        assert torch.equal(other.model[name], tensor), name


def changed(record: str, key: str, value: Callable[[Any], Any]) -> Callable[[WireGrid], Any]:
    """A reply in which one entry is another."""

    def strike(_: Message, reply: Message) -> Message:
        content: Any = reply.content[record]
        content[key] = value(content[key])
        return reply

    return lambda _: strike


def array(change: Callable[[Any], Any]) -> Callable[[Array], Array]:
    return lambda old: Array(np.array(change(old.numpy())))


def poisoned(values: Any) -> Any:
    return np.where(np.arange(values.size) == 3, np.nan, values).astype(values.dtype)


def replaced(content: Callable[[Message], RecordDict]) -> Callable[[WireGrid], Any]:
    return lambda _: lambda request, reply: Message(content(reply), reply_to=request)


def with_another_upload(reply: Message) -> RecordDict:
    upload = ArrayRecord({"weights": reply.content.array_records["upload"]["delta"]})
    return RecordDict({**reply.content, "upload": upload})


def belated(nodes: WireGrid) -> Any:
    def strike(_: Message, reply: Message) -> None:
        nodes.delay(reply)

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
    "silence": (lambda _: lambda *__: None, "no answer within 600 s"),
    "late": (belated, "no answer within 600 s"),
    "vanished": (vanished, "error 5: the node is unavailable"),
    "nan": (changed("upload", "delta", array(poisoned)), "its upload 'delta' has a NaN or an infinity"),
    "shape": (changed("upload", "delta", array(lambda v: v[:-1])), "its upload 'delta' is float32 of shape"),
    "precision": (changed("upload", "delta", array(np.float64)), "its upload 'delta' is float64 of shape"),
    "corrupt": (changed("upload", "delta", lambda a: Array("float32", (3,), a.stype, b"?")), "cannot be read"),
    "other upload": (replaced(with_another_upload), "its upload has ['weights'], not ['delta']"),
    "nan report": (changed("numbers", "lr", lambda _: float("nan")), "its 'lr' is nan"),
    "surplus report": (lambda _: _surplus, "its report has"),
    "other round": (changed("answers", "round", lambda r: r - 1), "it answers for round 1, and was asked for 2"),
    "other client": (
        changed("answers", "client", lambda c: c + 1),
        "it answers for client 2, and was asked for 1",
    ),
    "other run": (changed("answers", "series", lambda _: "old"), "it answers for series old"),
    "no samples": (changed("answers", "samples", lambda _: 0), "it says that it has 0 samples"),
    "empty": (replaced(lambda _: RecordDict()), "its answer cannot be read"),
    "nonsense": (replaced(lambda _: RecordDict({"answers": ConfigRecord({"round": "x"})})), "cannot be read"),
}


def _surplus(_: Message, reply: Message) -> Message:
    numbers = reply.content.metric_records["numbers"]
    reply.content["numbers"] = MetricRecord({**numbers, "report/score": 1.0})
    return reply


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_client_is_left_out_as_if_it_had_been_silent(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own state too is what the server believes: the control variate of a lost answer does not count."""
    harm, reason = FAULTS[fault]
    finished = on_flower("scaffold", harm)
    assert_same_model(in_simulator("scaffold", [EVERYBODY, OTHERS, EVERYBODY]), finished)
    left_out: list[Any] = [record.left_out or {} for record in finished.history]
    assert [set(reasons) for reasons in left_out] == [set(), {str(VICTIM)}, set()]
    assert reason in left_out[1][str(VICTIM)]
    assert any(
        f"round {ROUND}: client {VICTIM} is left out: {left_out[1][str(VICTIM)]}" in m for m in caplog.messages
    )


def test_weights_are_those_of_the_survivors() -> None:
    finished = on_flower("fedwcm", FAULTS["silence"][0])
    assert_same_model(in_simulator("fedwcm", [EVERYBODY, OTHERS, EVERYBODY]), finished)


def test_a_round_with_fewer_answers_than_needed_counts_as_unanswered(caplog: pytest.LogCaptureFixture) -> None:
    finished = on_flower("scaffold", FAULTS["nan"][0], **{"flower.min_clients": CLIENTS})
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

    from .federation import data

    return client_app(model=factory, data=data)


@pytest.mark.parametrize("phase", ["train.probe", "train.train"])
def test_a_fault_in_either_phase_does_not_stop_the_other(phase: str) -> None:
    def harm(_: WireGrid) -> Any:
        return lambda request, reply: None if request.metadata.message_type == phase else reply

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
    config = run_config("fedwcm", **{"flower.min_clients": CLIENTS})
    nodes = grid(config)
    nodes.node_of(VICTIM).online = False
    with pytest.raises(RuntimeError, match=r"4 clients connected within 0 s, flower.min_clients = 5 are needed"):
        serve(nodes, config, model, test_data)


def test_two_nodes_that_say_that_they_are_the_same_client_are_refused_by_name() -> None:
    config = run_config("fedwcm")
    nodes = grid(config)
    first, second = next(iter(nodes.nodes)), nodes.start(0)
    with pytest.raises(ValueError, match=f"{min(first, second)} and {max(first, second)} both say .* client 0"):
        serve(nodes, config, model, test_data)


def test_a_node_with_a_number_that_does_not_exist_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    config = run_config("fedavg", **FULL)
    nodes = grid(config)
    nodes.start(CLIENTS)
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert any("it says that it is client 5: allowed are 0 to 4" in message for message in caplog.messages)
    assert sum(kind == "query.info" for _, kind, _ in nodes.log) == CLIENTS + 1


def test_a_node_that_fails_to_say_who_it_is_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwcm.flower.client_directory.RETRY_AFTER", 0.0)
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
