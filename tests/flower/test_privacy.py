"""Counting under encryption: the same run, and the server is never shown a client's counts."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedwcm.flower.server import serve

from .federation import CLIENTS, data, grid, model, run_config, test_data
from .test_equality import assert_same
from .wire import Mischief

pytest.importorskip("tenseal", reason="TenSEAL is not installed: pip install 'fedwcm[he]'")

SEALED = {"flower.privacy": "he"}


def play(mischief: Mischief | None = None, **changes: Any) -> Any:
    config = run_config("fedwcm", **changes)
    nodes = grid(config)
    nodes.mischief = mischief or nodes.mischief
    return serve(nodes, config, model, test_data), nodes


def test_counting_under_encryption_gives_the_same_run() -> None:
    (plain, _), (private, nodes) = play(), play(**SEALED)
    assert_same(plain, private)
    kinds = {kind for _, kind, _ in nodes.log}
    assert "query.encrypted" in kinds
    assert "query.counts" not in kinds


def test_no_answer_holds_a_client_s_counts() -> None:
    """Neither as a list of numbers nor as the bytes of one; what it reports is one number."""
    labels = [data({"partition-id": client})[1] for client in range(CLIENTS)]
    counts = [np.bincount(own, minlength=10) for own in labels]
    reports: list[dict[str, Any]] = []

    def watch(client: int, request: Message, reply: Message) -> Message:
        for record in [*reply.content.metric_records.values(), *reply.content.config_records.values()]:
            for value in record.values():
                assert value != counts[client].tolist()
                if isinstance(value, bytes):
                    assert counts[client].tobytes() not in value
        if request.metadata.message_type == "query.statistics":
            reports.append(dict(reply.content.metric_records["statistics"]))
        return reply

    play(watch, **SEALED)
    assert [set(report) for report in reports] == [{"score"}] * CLIENTS


def test_a_secret_key_is_gone_once_it_has_answered() -> None:
    _, nodes = play(**SEALED)
    holders = [node.client for node in nodes.nodes.values() if b"fedwcm-key-holder" in node.context]
    assert holders == []


def test_a_client_that_is_silent_while_counting_is_left_out_of_the_totals() -> None:
    def silent(client: int, request: Message, reply: Message) -> Message | None:
        return None if client == 2 and request.metadata.message_type == "query.encrypted" else reply

    finished, _ = play(silent, **SEALED)
    everybody = np.concatenate([data({"partition-id": client})[1] for client in range(CLIENTS) if client != 2])
    assert list(finished.summary.train_counts) == np.bincount(everybody, minlength=10).tolist()


@pytest.mark.parametrize("bad", [RecordDict(), RecordDict({"encrypted": ConfigRecord({"data": b"PK\x03\x04"})})])
def test_a_bad_answer_while_counting_leaves_its_client_out(bad: RecordDict) -> None:
    def garbled(client: int, request: Message, reply: Message) -> Message:
        hit = client == 2 and request.metadata.message_type == "query.encrypted"
        return Message(bad, reply_to=request) if hit else reply

    finished, _ = play(garbled, **SEALED)
    everybody = np.concatenate([data({"partition-id": client})[1] for client in range(CLIENTS) if client != 2])
    assert list(finished.summary.train_counts) == np.bincount(everybody, minlength=10).tolist()
