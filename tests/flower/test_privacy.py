"""Privacy on Flower: the run is the simulator's, and messages hold no counts nor what gives them away."""

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import nn

from fedwcm.core.disclosure import SAMPLES_PER_LEVEL, Disclosure, as_counts
from fedwcm.core.types import Population
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.run import Run
from fedwcm.flower import client_app
from fedwcm.flower.client.privacy import stored_noisy_counts
from fedwcm.flower.records import from_bytes_record, read_population, to_bytes_record
from fedwcm.flower.server import setup as counting
from fedwcm.methods.fedwcm import FedWCM
from fedwcm.privacy.groups import Group
from fedwcm.privacy.messages import Contribution, Decrypted, Reply, size_limit
from fedwcm.privacy.options import PrivacyOptions
from fedwcm.privacy.wire import ProtocolError
from tests.privacy.score_attack import fitting_counts, population_of

from .federation import CLIENTS, counts_of, finish, grid, in_simulator
from .test_equality import assert_same
from .wire import WireGrid, honest

pytest.importorskip("tenseal", reason="TenSEAL is not installed: pip install 'fedwcm[he]'")

ALL_COUNTS = sum(map(counts_of, range(CLIENTS)))
SEALED: dict[str, Any] = {"privacy.mode": "he"}


def run_federation(mischief: Any = honest, **changes: Any) -> tuple[Run, WireGrid]:
    nodes = grid("fedwcm", mischief, **changes)
    return finish(nodes), nodes


TOLD: dict[str, Any] = {"flower.share_metrics": True}
EXACT: dict[str, Any] = {"privacy.score_levels": 0, **TOLD}


def test_a_run_under_encryption_is_the_simulator_s(caplog: pytest.LogCaptureFixture) -> None:
    private, nodes = run_federation(**SEALED, **TOLD)
    assert "without flower.out nobody remembers whose counts were summed" in caplog.text
    assert_same(in_simulator("fedwcm", **SEALED), private)
    assert "query.encrypted" in nodes.kinds()
    assert "query.counts" not in nodes.kinds()


def test_with_exact_scores_a_run_under_encryption_is_the_open_one() -> None:
    (plain, _), (private, _) = run_federation(), run_federation(**SEALED, **EXACT)
    assert_same(plain, private)


def test_no_answer_holds_a_client_s_counts() -> None:
    """Neither as a list of numbers nor as the bytes of one; what it reports is one number."""
    counts = [counts_of(client) for client in range(CLIENTS)]
    reports: list[dict[str, Any]] = []

    def watch(client: int, request: Message, reply: Message) -> Message:
        for record in [*reply.content.metric_records.values(), *reply.content.config_records.values()]:
            for value in record.values():  # type: ignore[attr-defined]
                assert value != counts[client].tolist()
                if isinstance(value, bytes):
                    assert counts[client].tobytes() not in value
        if request.metadata.message_type == "query.statistics":
            reports.append(dict(reply.content.metric_records["statistics"]))
        return reply

    run_federation(watch, **SEALED)
    assert [set(report) for report in reports] == [{"score"}] * CLIENTS


SMALL_COUNTS = np.array([[17, 3, 1], [9, 8, 4], [21, 1, 0], [6, 2, 3]])


def three_classes() -> nn.Module:
    return nn.Linear(2, 3)


def small_data(node_config: Any) -> tuple[Any, Any]:
    labels = np.repeat(np.arange(3), SMALL_COUNTS[node_config["partition-id"]])
    return torch.ones(len(labels), 2), labels


def overheard(**changes: Any) -> tuple[dict[int, int], dict[int, set[float]]]:
    """The samples and the scores that the server receives from each client, in all messages of a run."""
    own = {"flower.clients": len(SMALL_COUNTS), "participation.fraction": 1.0, "run.rounds": 2}
    samples: dict[int, int] = {}
    scores: dict[int, set[float]] = {}

    def listen(client: int, request: Message, reply: Message) -> Message:
        for record in [*reply.content.config_records.values(), *reply.content.metric_records.values()]:
            for key, value in record.items():  # type: ignore[attr-defined]
                if key == "samples":
                    samples[client] = int(str(value))
                if key in ("score", "report/score"):
                    scores.setdefault(client, set()).add(float(str(value)))
        return reply

    app = client_app(model=three_classes, data=small_data)
    finish(grid("fedwcm", listen, app=app, clients=len(SMALL_COUNTS), **own, **changes), three_classes, None)
    return samples, scores


@pytest.mark.parametrize("mode", ["none", "he"])
def test_the_scores_that_a_server_overhears_give_no_counts_away(mode: Any) -> None:
    """Under encryption; the open run is the control, in which they do."""
    samples, scores = overheard(**{"privacy.mode": mode})
    disclosure, population = Disclosure(PrivacyOptions(mode=mode).levels), population_of(SMALL_COUNTS)
    for client, own in enumerate(SMALL_COUNTS):
        (score,) = scores[client]
        fits = fitting_counts(samples[client], score, population, disclosure)
        assert own[1:].tolist() in fits.tolist()
        if mode == "none":
            assert len(fits) == 1
        else:
            assert len(np.unique(fits[:, -1])) >= SAMPLES_PER_LEVEL


def test_a_secret_key_is_gone_once_it_has_answered() -> None:
    _, nodes = run_federation(**SEALED)
    holders = [node.client for node in nodes.nodes.values() if b"fedwcm-key-holder" in node.context]
    assert holders == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (None, "no answer within"),
        (RecordDict(), "the record 'encrypted' is missing"),
        (RecordDict({"encrypted": ConfigRecord({"data": bytes(10**6)})}), "1,000,000 bytes"),
        (RecordDict({"encrypted": ConfigRecord({"data": b"PK\x03\x04"})}), "4 bytes are not a message"),
    ],
)
def test_a_client_that_is_not_counted_is_named_with_the_reason(
    bad: RecordDict | None,
    words: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if it was asked for a key first, here by the order of the candidates."""
    server = partial(counting.Server, rng=np.random.default_rng(0))  # type: ignore[attr-defined]
    monkeypatch.setattr(counting, "Server", server)

    def garbled(client: int, request: Message, reply: Message) -> Message | None:
        if client != 2 or request.metadata.message_type != "query.encrypted":
            return reply
        return None if bad is None else Message(bad, reply_to=request)

    out = tmp_path / "run"
    finished, nodes = run_federation(garbled, **SEALED, **{"flower.out": str(out), "run.rounds": 1})
    assert next(client for client, kind, _ in nodes.log if kind == "query.encrypted") == 2
    assert list(finished.summary.train_counts) == (ALL_COUNTS - counts_of(2)).tolist()
    facts = json.loads(RunFolder(out).federation_file.read_text())
    assert set(facts["not_counted"]) == {"2"}
    assert words in facts["not_counted"]["2"]
    assert any("client 2" in line and words in line for line in caplog.messages)


@pytest.mark.parametrize("swapped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_key_holder_that_lies_is_replaced_and_named(swapped: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Zeros cannot be true; two classes that change places can, but two others decrypt something else."""
    lied: list[int] = []

    def lie(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "query.encrypted" or lied:
            return reply
        inner = Reply.from_bytes(from_bytes_record(reply.content), size_limit(11))
        if not isinstance(inner, Decrypted):
            return reply
        lied.append(client)
        lie = (*inner.totals[1::-1], *inner.totals[2:]) if swapped else (0,) * len(inner.totals)
        return Message(to_bytes_record(replace(inner, totals=lie).to_bytes()), reply_to=request)

    finished, _ = run_federation(lie, **SEALED, **{"run.rounds": 1})
    assert f"a reply of client {lied[0]} is not used" in caplog.text
    assert list(finished.summary.train_counts) == ALL_COUNTS.tolist()


@pytest.mark.slow
def test_totals_that_one_key_holder_alone_has_decrypted_are_used_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    holder: list[int] = []

    def leave(client: int, request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type == "query.encrypted" and not holder:
            inner = Reply.from_bytes(from_bytes_record(reply.content), size_limit(11))
            holder.extend([client] if isinstance(inner, Decrypted) else [])
            return reply
        leaver = next(k for k in range(CLIENTS) if [k] != holder)
        return None if request.metadata.message_type == "query.encrypted" and client == leaver else reply

    finished, _ = run_federation(leave, **SEALED, **{"run.rounds": 1})
    assert list(finished.summary.train_counts) == ALL_COUNTS.tolist()
    assert f"nobody else has decrypted the totals of client {holder[0]}" in caplog.text


@pytest.mark.parametrize(
    ("counted", "noise", "possible"),
    [(49, 0, False), (50, 0, True), (200, 0, True), (201, 0, False), (-250, 300, True), (501, 300, False)],
)
def test_a_sum_must_be_what_its_clients_can_have(counted: int, noise: int, possible: bool) -> None:
    expected = nullcontext() if possible else pytest.raises(ProtocolError, match="their clients have 100, so")
    with expected:
        counting._require_plausible(counted, 100, noise)


def test_an_encrypted_reply_is_added_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not kept until the others are there."""
    events: list[str] = []
    take = Group.take_contribution

    def noted(group: Group, contribution: Contribution) -> None:
        events.append(f"added {contribution.sender}")
        take(group, contribution)

    monkeypatch.setattr(Group, "take_contribution", noted)
    nodes = grid("fedwcm", **SEALED, **{"run.rounds": 1})
    pull = nodes.pull_messages

    def pulled(message_ids: Any) -> list[Message]:
        events.append("fetched")
        return pull(message_ids)

    monkeypatch.setattr(nodes, "pull_messages", pulled)
    finish(nodes)
    added = [place for place, event in enumerate(events) if event.startswith("added")]
    assert len(added) == 2 * CLIENTS, "under the keys of two holders"
    assert "fetched" in events[added[0] : added[-1]], "more replies are fetched only when the first are added"


def test_the_protocol_s_options_can_be_set() -> None:
    with pytest.raises(ValueError, match="key_holders=2 needs at least 6 clients, not 5"):
        run_federation(**SEALED, **{"privacy.key_holders": 2})
    finished, nodes = run_federation(
        **SEALED,
        **{"privacy.key_holders": 2, "privacy.min_contributors": 2, "run.rounds": 1},
    )
    assert list(finished.summary.train_counts) == ALL_COUNTS.tolist()
    asked = [client for client, kind, _ in nodes.log if kind == "query.encrypted"]
    assert len(asked) == 2 * (2 + CLIENTS + 2), "each sum is decrypted by two key holders"


def test_the_old_names_of_the_option_are_errors() -> None:
    """Never a run that is less private than its user believes."""
    for key in ("run.privacy", "flower.privacy"):
        with pytest.raises(ValueError, match="privacy"):
            run_federation(**{key: "he"})


OPTIONS = {"rounds", "epochs", "steps", "batch_size", "momentum", "nesterov", "smallest_batch"}
PUBLIC = {"clients", "classes", "mean_samples", "prior", "target", "deviation", *OPTIONS}
"""What a client is told of the others: docs/privacy.md lists it."""


@pytest.mark.parametrize("mode", ["none", "he"])
def test_noise_is_drawn_once_and_covers_counts_and_scores(mode: Any, tmp_path: Path) -> None:
    claims: dict[int, list[int]] = {}
    changes = {"privacy.mode": mode, "privacy.epsilon": 0.5, "run.rounds": 2}
    totals, scores = [], list[tuple[int, float, Population]]()

    def listen(client: int, request: Message, reply: Message) -> Message:
        for record in reply.content.metric_records.values():
            for key in [key for key in record if key.endswith("score")]:
                facts = request.content.config_records["population"]
                assert set(facts) <= PUBLIC
                scores.append((client, float(str(record[key])), read_population(facts)))
        return reply

    for _ in range(2):
        finished = finish(grid("fedwcm", listen, node={"state-dir": str(tmp_path)}, **changes))
        totals.append(list(finished.summary.train_counts))
    for path in tmp_path.glob("client-*-noisy-counts.json"):
        (draw,) = json.loads(path.read_text())
        claims[int(path.name.split("-")[1])] = draw["noisy"]
    assert len(scores) > 2 * CLIENTS
    for client, score, population in scores:
        claimed = as_counts(np.array([claims[client]]))
        disclosure, ids = Disclosure(PrivacyOptions(mode=mode).levels), np.array([client])
        (expected,) = disclosure.report(FedWCM(), ids, claimed, population)["score"]
        assert score == pytest.approx(expected)
    assert totals[0] == totals[1] == np.maximum(np.sum(list(claims.values()), axis=0), 0).tolist()
    assert totals[0] != ALL_COUNTS.tolist()


@pytest.mark.parametrize("in_folder", [True, False])
def test_runs_with_other_noise_or_other_counts_do_not_make_a_client_draw_again(
    in_folder: bool, tmp_path: Path
) -> None:
    node_config: dict[str, Any] = {"state-dir": str(tmp_path)} if in_folder else {}
    context = Context(1, 2, node_config, RecordDict(), {})
    asked = [(counts, epsilon) for counts in ([900, 50, 3], [901, 50, 3]) for epsilon in (0.01, 0.02)]
    first, again = (
        [stored_noisy_counts(np.array(counts), epsilon, 0, context).tolist() for counts, epsilon in asked]
        for _ in range(2)
    )
    assert first == again
    assert len({tuple(claim) for claim in first}) == len(asked)
    elsewhere = Context(1, 2, {}, RecordDict(), {})
    assert stored_noisy_counts(np.array(asked[0][0]), asked[0][1], 0, elsewhere).tolist() != first[0]


def test_a_node_s_epsilon_is_for_all_runs_together(tmp_path: Path) -> None:
    """Else a server could ask for 1, 0.99, 0.98, …, and the mean of the answers would be exact."""
    counts = np.array([900, 50, 3])
    context = Context(1, 2, {"state-dir": str(tmp_path), "epsilon": 1.0}, RecordDict(), {})
    first = [stored_noisy_counts(counts, epsilon, 0, context).tolist() for epsilon in (0.6, 0.4)]
    for epsilon in (0.01, 0.59, 1.0):
        with pytest.raises(ValueError, match=f"epsilon = 1.0 for its counts in all: privacy.epsilon = {epsilon} "):
            stored_noisy_counts(counts, epsilon, 0, context)
    assert [stored_noisy_counts(counts, epsilon, 0, context).tolist() for epsilon in (0.6, 0.4)] == first
