"""What one client and one server can do at most, each tried by an attack."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, Context, Error, Message, RecordDict

from fedwcm.config.schema import Component, Config
from fedwcm.experiment.run import Run
from fedwcm.flower.client.privacy import require_allowed_code, stored_noisy_counts
from fedwcm.flower.client.state import state_file
from fedwcm.flower.records import RequestId

from .federation import CLIENTS, FULL, OTHERS, VICTIM, assert_same_model, counts_of, finish, grid, on_flower
from .wire import edit, fall_silent, strike

TRAIN = "train.train"


@pytest.mark.parametrize("run_id", ["../../evil", "/tmp/evil", "a/b", "", "x" * 100, "a\x00b", "a\n"])
def test_a_server_names_no_file_outside_a_node_s_state_folder(run_id: str, tmp_path: Path) -> None:
    context = Context(1, 2, {"state-dir": str(tmp_path / "state")}, RecordDict(), {})
    with pytest.raises(ValueError, match="run_id"):
        state_file(context, RequestId("train", 1, 0, run_id))
    assert state_file(context, RequestId("train", 1, 0, "0123456789abcdef"))


@pytest.mark.parametrize("kind", ["method", "loss", "sampler"])
def test_a_server_makes_a_node_import_only_code_that_its_owner_allows(kind: str) -> None:
    asked: Config = replace(Config(), **{kind: Component("evil.module:Thing")})  # type: ignore[arg-type]
    for allowed in ({}, {"allow-code": "evil.module:Other,evil"}):
        with pytest.raises(ValueError, match="allow-code"):
            require_allowed_code(asked, allowed)
    require_allowed_code(asked, {"allow-code": "mine:Other, evil.module:Thing"})
    require_allowed_code(Config(), {})


def test_a_node_refuses_a_run_whose_loss_is_code_of_the_server_s() -> None:
    with pytest.raises(RuntimeError, match="allow-code"):
        on_flower("fedavg", **FULL, **{"loss.name": "fedwcm.losses.focal:Focal"})


def test_noisy_counts_are_stored_for_their_owner_only_and_named_after_no_secret(tmp_path: Path) -> None:
    context = Context(1, 2, {"state-dir": str(tmp_path)}, RecordDict(), {})
    for counts in ([900, 50, 3], [901, 50, 3]):
        stored_noisy_counts(np.array(counts), 0.5, 0, context)
    (path,) = tmp_path.iterdir()
    assert path.name == "client-0-noisy-counts.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(path.read_text())) == 2


@pytest.mark.parametrize(("factor", "rounds"), [(2, [5, 5]), (3, [5, 4])])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_client_may_at_most_double_the_samples_that_it_first_reported(
    factor: int, rounds: list[int], restarts: bool
) -> None:
    """Its weight depends on them: neither an answer nor a restarted node may raise it further."""
    nodes = grid("fedavg", **FULL, **{"run.rounds": 2})
    record = "info" if restarts else "answers"

    def mischief(client: int, request: Message, reply: Message) -> Message:
        kind, round_ = request.metadata.message_type, int(request.metadata.group_id)
        if restarts and client == CLIENTS - 1 and (kind, round_) == (TRAIN, 1):
            nodes.replace(VICTIM)
        later = len(nodes.log) > 3 * CLIENTS if restarts else round_ > 1
        if client == VICTIM and later and record in reply.content.config_records:
            reply.content.config_records[record]["samples"] = factor * int(counts_of(VICTIM).sum())
        return reply

    nodes.mischief = mischief
    assert [each.participants for each in finish(nodes).history] == rounds


def test_the_words_of_a_client_s_error_decide_nothing_and_reach_no_terminal_raw(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the words for a diverged model nor those of a client with another number, nor control characters."""
    words = "its upload has a NaN or an infinity \x1b[2J but the message is for client"
    nodes = grid("fedavg", strike(lambda sent, _: _error(sent, words), range(1, CLIENTS), TRAIN), **FULL)
    for record in finish(nodes).history:
        assert record.participants == 1
        assert record.left_out is not None
        assert all("\\x1b[2J" in reason and reason.isprintable() for reason in record.left_out.values())
    assert sum(kind == "query.info" for _, kind, _ in nodes.log) == CLIENTS, "no node is asked again who it is"
    assert "\x1b" not in caplog.text


def _error(request: Message, words: str) -> Message:
    return Message(Error(2, words), reply_to=request)


def test_a_run_whose_answers_are_all_refused_ends_as_failed() -> None:
    """And one whose clients are only away for as many rounds goes on."""
    refuse = strike(lambda sent, _: _error(sent, "no"), kind=TRAIN, rounds=range(2, 7))
    words = "every answer was refused, 5 rounds in a row; the last: error 2: no"
    with pytest.raises(RuntimeError, match=words):
        on_flower("fedavg", refuse, **FULL, **{"run.rounds": 7})
    away = strike(fall_silent, kind=TRAIN, rounds=range(2, 7))
    finished = on_flower("fedavg", away, **FULL, **{"run.rounds": 7})
    assert [record.participants for record in finished.history[1:6]] == [0] * 5


def claim(content: RecordDict, samples: int, scarcest: int | None = None) -> None:
    """Say that there are so many samples, of the scarcest class if it is given."""
    for record in content.config_records.values():
        if "samples" in record:
            record["samples"] = samples
    for numbers in content.metric_records.values():
        if "counts" in numbers and scarcest is not None:
            numbers["counts"] = [samples * (c == scarcest) for c in range(10)]


def test_a_client_that_claims_a_billion_samples_is_not_used() -> None:
    without = grid("fedwcm-x", **FULL)
    without.node_of(VICTIM).online = False
    fooled = on_flower("fedwcm-x", edit(lambda content: claim(content, 10**9), {VICTIM}), **FULL)
    assert "1,000,000,000 samples, more than 10 times" in (fooled.history[0].left_out or {})[str(VICTIM)]
    assert_same_model(finish(without), fooled)


@pytest.mark.parametrize(("clients", "used"), [(3, 3), (4, 3)])
def test_samples_are_compared_from_four_clients_on(clients: int, used: int) -> None:
    lie = edit(lambda content: claim(content, 10**5, 9), {VICTIM})
    nodes = grid("fedavg", lie, clients=clients, **FULL, **{"flower.clients": clients, "run.rounds": 1})
    assert finish(nodes).history[0].participants == used


@pytest.mark.parametrize("method", ["fedavg", "fedwcm[temperature_scale=0.01]"])
def test_no_client_has_more_than_a_stated_share_of_a_round(method: str) -> None:
    """Whatever it claims: samples, where the operator allows so many, or the largest score."""
    scarcest, samples = 9, 10**6 if method == "fedavg" else int(counts_of(VICTIM).sum())
    mean_sizes = set[float]()

    def mischief(client: int, request: Message, reply: Message) -> Message:
        population: Any = request.content.config_records.get("population")
        if population is not None:
            mean_sizes.add(population["mean_samples"])
        if client == VICTIM:
            claim(reply.content, samples, scarcest)
            for numbers in reply.content.metric_records.values():
                for key in [key for key in numbers if key.endswith("score")]:
                    numbers[key] = max(0.1 - population["prior"][scarcest], 0.0)
        return reply

    finished = on_flower(method, mischief, **FULL, **{"flower.max_samples": 10**6})
    for record in finished.history:
        assert record.participants == CLIENTS
        assert max(record.weights or ()) <= 0.4 + 1e-6, "twice an equal share"
    assert max(mean_sizes) < 10 * 60, "no size counts as more than ten times the median of the others"


@pytest.mark.parametrize("when", ["query.statistics", TRAIN])
def test_a_score_that_does_not_follow_from_the_counts_or_changes_later_is_not_used(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    def lie(content: RecordDict) -> None:
        for numbers in content.metric_records.values():
            numbers.update({key: 0.05 for key in numbers if key.endswith("score")})

    finished = on_flower("fedwcm", edit(lie, {VICTIM}, when), **FULL)
    if when == "query.statistics":
        assert "query.statistics: client 1 is left out: its 'score' is 0.05" in caplog.text
    else:
        honest = on_flower("fedwcm", **FULL)
        assert [record.weights for record in finished.history] == [record.weights for record in honest.history]


def with_changed_upload(method: str, key: str, change: Callable[[Any], Any]) -> Run:
    """Six rounds in which a part of one client's upload is changed."""

    def lie(content: RecordDict) -> None:
        upload = content.array_records["upload"]
        upload[key] = Array(np.asarray(change(upload[key].numpy())))

    finished = on_flower(method, edit(lie, {VICTIM}, TRAIN), **FULL, **{"run.rounds": 6})
    assert all(record.participants == CLIENTS for record in finished.history)
    return finished


def last_accuracy(run: Run) -> float:
    return run.history[-1].test_accuracy or 0


def test_one_long_upload_is_bounded_by_those_of_the_others() -> None:
    """And does not make the losses of all others exceed their bound."""
    fooled = with_changed_upload("fedwcm", "delta", lambda v: v * np.float32(-900 / np.linalg.norm(v)))
    assert all(record.extra["clipped_clients"] >= 1 for record in fooled.history)
    assert float(torch.cat([t.flatten() for t in fooled.model.values()]).norm()) < 50
    assert last_accuracy(fooled) > last_accuracy(on_flower("fedwcm", **FULL, **{"run.rounds": 6})) - 0.2


@pytest.mark.parametrize(
    ("method", "key", "factors"), [("fedexp", "square", [1e3]), ("q-ffl", "scale", [-100, 100])]
)
def test_a_number_beside_the_upload_is_bounded_as_the_upload_is(
    method: str, key: str, factors: list[float]
) -> None:
    """It decides on the server's step: its length in FedExP, and in q-FFL its divisor."""
    honest = on_flower(method, **FULL, **{"run.rounds": 6})
    for factor in factors:
        fooled = with_changed_upload(method, key, partial(np.multiply, np.float32(factor)))
        assert last_accuracy(fooled) > last_accuracy(honest) - 0.1


def test_a_client_with_a_number_beyond_all_others_does_not_end_the_start() -> None:
    def lie(content: RecordDict) -> None:
        for record in content.config_records.values():
            if "client" in record:
                record["client"] = 99_999

    finished = on_flower("fedavg", edit(lie, {CLIENTS - 1}), **FULL, **{"flower.clients": 0})
    assert [record.participants for record in finished.history] == [CLIENTS - 1] * 3
    assert [record.left_out for record in finished.history] == [None] * 3, "nobody else is expected"


@pytest.mark.parametrize("client", [0, CLIENTS - 1])
def test_most_clients_decide_on_the_shape_of_inputs_not_the_first(client: int) -> None:
    lie = edit(lambda content: content.config_records["info"].update(input_shape=[8, 8]), {client}, "query.info")
    finished = finish(grid("fedavg", lie, **FULL, **{"run.rounds": 1}), evaluate=None)
    assert finished.history[-1].clients == tuple(c for c in range(CLIENTS) if c != client)


def test_a_reply_that_comes_in_drops_holds_up_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower hands it out only when it is complete, which may take as long as its sender likes."""
    monkeypatch.setattr("fedwcm.flower.server.exchange.SHORTEST_PULL", 0.2)
    nodes, dripping = grid("fedavg", **FULL, **{"run.rounds": 1, "flower.timeout": 0.5}), set[str]()
    pull, end = nodes.pull_messages, Event()

    def drip(request: Message, reply: Message) -> Message:
        dripping.add(request.metadata.message_id)
        return reply

    def dripped(message_ids: Iterable[str]) -> list[Message]:
        ids = list(message_ids)
        if dripping & set(ids):
            end.wait(60)
        return pull(ids)

    nodes.mischief = strike(drip, {VICTIM}, TRAIN)
    monkeypatch.setattr(nodes, "pull_messages", dripped)
    began = time.monotonic()
    finished = finish(nodes)
    end.set()
    assert time.monotonic() - began < 20
    assert finished.history[0].clients == tuple(OTHERS)
    assert "no answer within" in (finished.history[0].left_out or {})[str(VICTIM)]


@pytest.mark.parametrize("kind", ["query.counts", TRAIN])
def test_a_reply_that_is_much_too_large_is_refused(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    padding = ConfigRecord({"zeros": bytes(2**24 + 10**6)})
    on_flower("fedavg", edit(lambda c: c.update(padding=padding), {VICTIM}, kind), **FULL, **{"run.rounds": 1})
    assert f"client {VICTIM} is left out: its answer has 17," in caplog.text


def test_the_folder_of_a_run_is_for_its_owner_only(tmp_path: Path) -> None:
    """It holds samples and scores of clients."""
    on_flower("fedwcm", **FULL, **{"run.rounds": 1, "flower.out": str(tmp_path / "runs" / "first")})
    for path in (tmp_path / "runs").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
