"""What one client and one server can do at most, each tried by an attack."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Context, Error, Message, RecordDict

from fedwcm.config.schema import Component, Config
from fedwcm.flower.client.privacy import require_allowed_code, stored_noisy_counts
from fedwcm.flower.client.state import state_keeper
from fedwcm.flower.records import RequestId
from fedwcm.flower.server.deployment import serve

from .federation import CLIENTS, data, grid, model, run_config, test_data

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


def test_the_words_of_a_client_s_error_decide_nothing_and_reach_no_terminal_raw() -> None:
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
