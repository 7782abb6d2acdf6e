"""What one client and one server can do at most, each tried by an attack."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, Context, Error, Message, RecordDict

from fedwcm.config.schema import Component, Config
from fedwcm.flower import client_app
from fedwcm.flower.client.privacy import require_allowed_code, stored_noisy_counts
from fedwcm.flower.client.state import state_keeper
from fedwcm.flower.records import RequestId
from fedwcm.flower.server.deployment import serve

from .federation import CLIENTS, data, grid, model, run_config, test_data
from .wire import Mischief, WireGrid

VICTIM = 1
FULL: dict[str, Any] = {"participation.fraction": 1.0}


@pytest.mark.parametrize("run_id", ["../../evil", "/tmp/evil", "a/b", "", "x" * 100, "a\x00b", "a\n"])
def test_a_server_names_no_file_outside_a_node_s_state_folder(run_id: str, tmp_path: Path) -> None:
    context = Context(1, 2, {"state-dir": str(tmp_path / "state")}, RecordDict(), {})
    with pytest.raises(ValueError, match="run_id"):
        state_keeper(context, RequestId("train", 1, 0, run_id))
    assert state_keeper(context, RequestId("train", 1, 0, "0123456789abcdef"))


@pytest.mark.parametrize("kind", ["method", "loss", "sampler"])
def test_a_server_makes_a_node_import_only_code_that_its_owner_allows(kind: str) -> None:
    asked: Config = replace(Config(), **{kind: Component("evil.module:Thing")})  # type: ignore[arg-type]
    for allowed in ({}, {"allow-code": "evil.module:Other,evil"}):
        with pytest.raises(ValueError, match="allow-code"):
            require_allowed_code(asked, allowed)
    require_allowed_code(asked, {"allow-code": "mine:Other, evil.module:Thing"})
    require_allowed_code(Config(), {})


def test_a_node_refuses_a_run_whose_loss_is_code_of_the_server_s(caplog: pytest.LogCaptureFixture) -> None:
    config = run_config("fedavg", **FULL, **{"loss.name": "fedwcm.losses.focal:Focal"})
    with pytest.raises(RuntimeError, match="allow-code"):
        serve(grid(config), config, model, test_data)


def test_noisy_counts_are_stored_for_their_owner_only_and_named_after_no_secret(tmp_path: Path) -> None:
    context = Context(1, 2, {"state-dir": str(tmp_path)}, RecordDict(), {})
    for counts in ([900, 50, 3], [901, 50, 3]):
        stored_noisy_counts(np.array(counts), 0.5, 0, context)
    (path,) = tmp_path.iterdir()
    assert path.name == "client-0-noisy-counts.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(path.read_text())) == 2


@pytest.mark.parametrize(("factor", "rounds"), [(2, [5, 5, 5]), (3, [5, 4, 4]), (200, [5, 4, 4])])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_client_may_at_most_double_the_samples_that_it_first_reported(
    factor: int, rounds: list[int], restarts: bool
) -> None:
    """Its weight depends on them: neither an answer nor a restarted node may raise it further."""
    config = run_config("fedavg", **FULL)
    nodes = grid(config)
    record = "info" if restarts else "answers"

    def mischief(client: int, request: Message, reply: Message) -> Message:
        kind, round_ = request.metadata.message_type, int(request.metadata.group_id)
        if restarts and client == CLIENTS - 1 and (kind, round_) == ("train.train", 1):
            nodes.node_of(VICTIM).online = False
            nodes.start(VICTIM)
        later = len(nodes.log) > 3 * CLIENTS if restarts else round_ > 1
        if client == VICTIM and later and record in reply.content.config_records:
            facts = reply.content.config_records[record]
            facts["samples"] = factor * len(data({"partition-id": VICTIM})[1])
        return reply

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert [each.participants for each in finished.history] == rounds


def test_the_words_of_a_client_s_error_decide_nothing_and_reach_no_terminal_raw(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the words for a diverged model nor those of a client with another number, nor control characters."""
    config = run_config("fedavg", **FULL)
    nodes = grid(config)
    words = "its upload has a NaN or an infinity \x1b[2J but the message is for client"

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if client and request.metadata.message_type == "train.train":
            return Message(Error(2, words), reply_to=request)
        return reply

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    for record in finished.history:
        assert record.participants == 1
        assert record.left_out is not None
        assert all("\\x1b[2J" in reason and reason.isprintable() for reason in record.left_out.values())
    assert sum(kind == "query.info" for _, kind, _ in nodes.log) == CLIENTS, "no node is asked again who it is"
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("silent", [False, True])
def test_a_run_whose_answers_are_all_refused_ends_as_failed(silent: bool) -> None:
    """And one whose clients are only away for as many rounds goes on."""
    config = run_config("fedavg", **FULL, **{"run.rounds": 7})
    nodes = grid(config)

    def mischief(client: int, request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type == "train.train" and 1 < int(request.metadata.group_id) < 7:
            return None if silent else Message(Error(2, "no"), reply_to=request)
        return reply

    nodes.mischief = mischief
    if not silent:
        with pytest.raises(
            RuntimeError, match="every answer was refused, 5 rounds in a row; the last: error 2: no"
        ):
            serve(nodes, config, model, test_data)
        return
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert [record.participants for record in finished.history[1:6]] == [0] * 5


def test_two_of_four_clients_that_send_nan_do_not_end_a_run() -> None:
    config = run_config("fedavg", **FULL, **{"flower.clients": 4, "run.rounds": 2})
    nodes = grid(config)

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if client < 2 and request.metadata.message_type == "train.train":
            upload = reply.content.array_records["upload"]
            upload["delta"] = Array(np.full_like(upload["delta"].numpy(), np.nan))
        return reply

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert [record.clients for record in finished.history] == [(2, 3)] * 2


def answering(change: Callable[[str, RecordDict], None], client: int = VICTIM) -> Mischief:
    """What becomes of one client's answers, by the kind of message."""

    def mischief(sender: int, request: Message, reply: Message) -> Message:
        if sender == client and reply.has_content():
            change(request.metadata.message_type, reply.content)
        return reply

    return mischief


@pytest.mark.parametrize("method", ["fedavg", "fedwcm-x"])
def test_a_client_that_claims_a_billion_samples_is_not_used(method: str) -> None:
    def claim(_: str, content: RecordDict) -> None:
        for record in content.config_records.values():
            if "samples" in record:
                record["samples"] = 10**9

    config = run_config(method, **FULL)
    nodes, without = grid(config), grid(config)
    nodes.mischief = answering(claim)
    without.node_of(VICTIM).online = False
    fooled, honest = serve(nodes, config, model, test_data), serve(without, config, model, test_data)
    assert fooled is not None
    assert honest is not None
    assert "1,000,000,000 samples, more than 10 times" in (fooled.history[0].left_out or {})[str(VICTIM)]
    for name, tensor in honest.model.items():
        assert torch.equal(fooled.model[name], tensor)


@pytest.mark.parametrize(("clients", "used"), [(3, 3), (4, 3)])
def test_samples_are_compared_from_four_clients_on(clients: int, used: int) -> None:
    def claim(_: str, content: RecordDict) -> None:
        for record in content.config_records.values():
            if "samples" in record:
                record["samples"] = 10**5
        for numbers in content.metric_records.values():
            if "counts" in numbers:
                numbers["counts"] = [*[0] * 9, 10**5]

    config = run_config("fedavg", **FULL, **{"flower.clients": clients, "run.rounds": 1})
    nodes = WireGrid(client_app(model=model, data=data), config, clients)
    nodes.mischief = answering(claim)
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert finished.history[0].participants == used


@pytest.mark.parametrize("method", ["fedavg", "fedwcm[temperature_scale=0.01]"])
def test_no_client_has_more_than_a_stated_share_of_a_round(method: str) -> None:
    """Whatever it claims: samples, where the operator allows so many, or the largest score."""

    scarcest = 9
    config = run_config(method, **FULL, **{"flower.max_samples": 10**6})
    nodes, mean_sizes = grid(config), set[float]()

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if "population" in request.content.config_records:
            mean_sizes.add(float(str(request.content.config_records["population"]["mean_samples"])))
        if client != VICTIM:
            return reply
        for record in reply.content.config_records.values():
            if "samples" in record:
                record["samples"] = 10**6 if method == "fedavg" else record["samples"]
        for numbers in reply.content.metric_records.values():
            if "counts" in numbers:
                samples = 10**6 if method == "fedavg" else sum(numbers["counts"])  # type: ignore[arg-type]
                numbers["counts"] = [*[0] * scarcest, samples]
            for key in [key for key in numbers if key.endswith("score")]:
                prior = request.content.config_records["population"]["prior"]
                numbers[key] = max(0.1 - prior[scarcest], 0.0)
        return reply

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    for record in finished.history:
        assert record.participants == CLIENTS
        assert max(record.weights or ()) <= 0.4 + 1e-6, "twice an equal share"
    assert max(mean_sizes) < 10 * 60, "no size counts as more than ten times the median of the others"


@pytest.mark.parametrize("when", ["query.statistics", "train.train"])
def test_a_score_that_does_not_follow_from_the_counts_or_changes_later_is_not_used(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    def claim(kind: str, content: RecordDict) -> None:
        for numbers in content.metric_records.values():
            for key in [key for key in numbers if key.endswith("score") and kind == when]:
                numbers[key] = 0.05

    config = run_config("fedwcm", **FULL)
    nodes = grid(config)
    nodes.mischief = answering(claim)
    finished, honest = serve(nodes, config, model, test_data), serve(grid(config), config, model, test_data)
    assert finished is not None
    assert honest is not None
    if when == "query.statistics":
        assert "query.statistics: client 1 is left out: its 'score' is 0.05" in caplog.text
    else:
        assert [record.weights for record in finished.history] == [record.weights for record in honest.history]


@pytest.mark.parametrize("method", ["fedavg", "fedwcm"])
def test_one_long_upload_is_bounded_by_those_of_the_others(method: str) -> None:
    """And does not make the losses of all others exceed their bound."""

    def lie(kind: str, content: RecordDict) -> None:
        if kind == "train.train":
            upload = content.array_records["upload"]
            delta = upload["delta"].numpy()
            upload["delta"] = Array(delta * np.float32(-900 / np.linalg.norm(delta)))

    config = run_config(method, **FULL, **{"run.rounds": 6})
    nodes = grid(config)
    nodes.mischief = answering(lie)
    finished = serve(nodes, config, model, test_data)
    honest = serve(grid(config), config, model, test_data)
    assert finished is not None
    assert honest is not None
    assert all(record.participants == CLIENTS for record in finished.history)
    assert all(record.extra["clipped_clients"] >= 1 for record in finished.history)
    assert float(torch.cat([t.flatten() for t in finished.model.values()]).norm()) < 50
    assert (finished.history[-1].test_accuracy or 0) > (honest.history[-1].test_accuracy or 0) - 0.2


@pytest.mark.parametrize(
    ("method", "key", "factor"), [("fedexp", "square", 1e3), ("q-ffl", "scale", -100.0), ("q-ffl", "scale", 100.0)]
)
def test_a_number_beside_the_upload_is_bounded_as_the_upload_is(method: str, key: str, factor: float) -> None:
    """It decides on the server's step: its length in FedExP, and in q-FFL its divisor."""

    def lie(kind: str, content: RecordDict) -> None:
        if kind == "train.train":
            upload = content.array_records["upload"]
            upload[key] = Array(upload[key].numpy() * np.float32(factor))

    config = run_config(method, **FULL, **{"run.rounds": 6})
    nodes = grid(config)
    nodes.mischief = answering(lie)
    fooled, honest = serve(nodes, config, model, test_data), serve(grid(config), config, model, test_data)
    assert fooled is not None
    assert honest is not None
    assert all(record.participants == CLIENTS for record in fooled.history)
    assert (fooled.history[-1].test_accuracy or 0) > (honest.history[-1].test_accuracy or 0) - 0.1


def test_a_client_with_a_number_beyond_all_others_does_not_end_the_start() -> None:
    def claim(_: str, content: RecordDict) -> None:
        for record in content.config_records.values():
            if "client" in record:
                record["client"] = 99_999

    config = run_config("fedavg", **FULL, **{"flower.clients": 0})
    nodes = grid(config)
    nodes.mischief = answering(claim, CLIENTS - 1)
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert [record.participants for record in finished.history] == [CLIENTS - 1] * 3
    assert [record.left_out for record in finished.history] == [None] * 3, "nobody else is expected"


def test_most_clients_decide_on_the_shape_of_inputs_not_the_first() -> None:
    def claim(_: str, content: RecordDict) -> None:
        if "info" in content.config_records:
            content.config_records["info"]["input_shape"] = [8, 8]

    config = run_config("fedavg", **FULL)
    for client in range(CLIENTS):
        nodes = grid(config)
        nodes.mischief = answering(claim, client)
        finished = serve(nodes, config, model)
        assert finished is not None
        assert finished.history[-1].clients == tuple(c for c in range(CLIENTS) if c != client)


def test_a_number_belongs_to_the_node_that_had_it_first_also_while_that_is_away() -> None:
    config = {key: value for key, value in run_config("fedavg", **FULL).items() if key != "flower.bind_nodes"}
    nodes = grid(config)

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if client == CLIENTS - 1 and request.metadata.group_id == "1":
            nodes.node_of(VICTIM).online = False
            nodes.start(VICTIM)
        return reply

    nodes.mischief = mischief
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert [record.participants for record in finished.history] == [5, 4, 4]
    assert "which belongs to node" in (finished.history[-1].left_out or {})[str(VICTIM)]


def test_a_reply_that_comes_in_drops_holds_up_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower hands it out only when it is complete, which may take as long as its sender likes."""
    monkeypatch.setattr("fedwcm.flower.server.exchange.SHORTEST_PULL", 0.2)
    config = run_config("fedavg", **FULL, **{"run.rounds": 1, "flower.timeout": 0.5})
    nodes, dripping = grid(config), set[str]()
    pull, end = nodes.pull_messages, Event()

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if client == VICTIM and request.metadata.message_type == "train.train":
            dripping.add(request.metadata.message_id)
        return reply

    def dripped(message_ids: Iterable[str]) -> list[Message]:
        ids = list(message_ids)
        if dripping & set(ids):
            end.wait(60)
        return pull(ids)

    nodes.mischief = mischief
    monkeypatch.setattr(nodes, "pull_messages", dripped)
    began = time.monotonic()
    finished = serve(nodes, config, model, test_data)
    end.set()
    assert time.monotonic() - began < 20
    assert finished is not None
    assert finished.history[0].clients == tuple(c for c in range(CLIENTS) if c != VICTIM)
    assert "no answer within" in (finished.history[0].left_out or {})[str(VICTIM)]


@pytest.mark.parametrize("kind", ["query.counts", "train.train"])
def test_a_reply_that_is_much_too_large_is_refused(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def pad(asked: str, content: RecordDict) -> None:
        if asked == kind:
            content["padding"] = ConfigRecord({"zeros": bytes(2**24 + 10**6)})

    config = run_config("fedavg", **FULL, **{"run.rounds": 1})
    nodes = grid(config)
    nodes.mischief = answering(pad)
    assert serve(nodes, config, model, test_data) is not None
    assert f"client {VICTIM} is left out: its answer has 17," in caplog.text


def test_the_folder_of_a_run_is_for_its_owner_only(tmp_path: Path) -> None:
    """It holds samples and scores of clients."""
    config = run_config("fedwcm", **FULL, **{"run.rounds": 1, "flower.out": str(tmp_path / "runs" / "first")})
    assert serve(grid(config), config, model, test_data) is not None
    for path in (tmp_path / "runs").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
