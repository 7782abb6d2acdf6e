"""Classes are counted once for a folder: the difference of two sums would be a client's own counts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

from fedwcm.experiment.folder import RunFolder
from fedwcm.flower.app.options import read
from fedwcm.flower.server.deployment import serve
from fedwcm.flower.server.setup import FederationSetup, plausible_mean

from .federation import CLIENTS, grid, model, run_config, test_data
from .test_resume import FULL, Killed, assert_same, finish, in_simulator, killed_in
from .wire import WireGrid


def kinds(nodes: WireGrid) -> set[str]:
    return {kind for _, kind, _ in nodes.log}


def silent_about(nodes: WireGrid, kind: str) -> None:
    """No client answers messages of this kind."""

    def mischief(client: int, request: Message, reply: Message) -> Message:
        hit = request.metadata.message_type == kind
        return Message(Error(2, "disk full"), reply_to=request) if hit else reply

    nodes.mischief = mischief


def test_a_run_that_fails_after_counting_does_not_count_again(tmp_path: Path) -> None:
    config = run_config("fedwcm", **{"flower.out": str(tmp_path)})
    nodes = grid(config)
    silent_about(nodes, "query.statistics")
    reason = "0 clients reported their statistics, flower.min_clients = 1 are needed"
    with pytest.raises(RuntimeError, match=reason):
        serve(nodes, config, model, test_data)
    assert "query.counts" in kinds(nodes)
    again = grid(config)
    assert_same(in_simulator("fedwcm"), finish(again, config))
    assert "query.counts" not in kinds(again)
    assert "query.statistics" in kinds(again)


def test_too_few_counted_clients_stay_too_few(tmp_path: Path) -> None:
    config = run_config("fedavg", **FULL, **{"flower.out": str(tmp_path), "flower.min_clients": CLIENTS})
    nodes = grid(config)
    nodes.mischief = lambda client, request, reply: (
        None if client == 2 and request.metadata.message_type == "query.counts" else reply
    )
    again = grid(config)
    for attempt in (nodes, again):
        with pytest.raises(RuntimeError, match=r"4 clients were counted, flower.min_clients = 5 are needed"):
            serve(attempt, config, model, test_data)
    assert "query.counts" not in kinds(again)
    finish(grid(config), {**config, "flower.min_clients": 4})


@pytest.mark.parametrize("mode", ["none", "he"])
def test_a_client_that_comes_while_classes_are_counted_is_not_counted(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = CLIENTS - 1
    out = tmp_path / "run"
    config = run_config("fedwcm", **{"flower.out": str(out), "privacy.mode": mode})
    nodes = grid(config)
    nodes.node_of(late).online = False
    online = nodes.get_node_ids

    def connected() -> list[int]:
        nodes.node_of(late).online |= nodes.log != []  # the others were waited for, and have said who they are
        return online()

    monkeypatch.setattr(nodes, "get_node_ids", connected)
    finish(nodes, config)
    setup = FederationSetup.read(out)
    assert setup.counted == list(range(late))
    assert set(setup.first_samples) == set(range(CLIENTS))
    assert setup.not_counted == {late: "it was not connected when the counting of classes began"}
    assert len(setup.statistics["score"]) == late
    assert not {"query.counts", "query.encrypted", "query.statistics"} & {k for c, k, _ in nodes.log if c == late}
    with pytest.raises(RuntimeError, match=r"4 clients were counted, flower.min_clients = 5 are needed"):
        setup.require_enough(CLIENTS)


def test_counts_are_not_taken_for_options_that_need_others(tmp_path: Path) -> None:
    config = run_config("fedwcm", **{"flower.out": str(tmp_path)})
    nodes = grid(config)
    silent_about(nodes, "query.statistics")
    with pytest.raises(RuntimeError, match="reported their statistics"):
        serve(nodes, config, model, test_data)
    with pytest.raises(ValueError, match=r"counted with other options \(privacy.epsilon: None is now 0.5\)"):
        serve(grid(config), {**config, "privacy.epsilon": 0.5}, model, test_data)


def test_more_answers_than_a_round_asks_for_are_refused_before_counting() -> None:
    message = (
        r"flower.min_clients = 4 is not allowed: it must be at most 3, as participation.fraction = 0.6 asks 3 of 5"
    )
    config = run_config("fedavg", **{"flower.clients": 0, "flower.min_clients": 4})
    nodes = grid(config)
    with pytest.raises(ValueError, match=message):
        serve(nodes, config, model, test_data)
    assert kinds(nodes) == {"query.info"}
    with pytest.raises(ValueError, match=message):
        read({**config, "flower.clients": CLIENTS})
    read({**config, "flower.clients": CLIENTS, "participation.sampling": "bernoulli"})


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("scaffold", {"aggregation.rule": "median"}, "is not possible with the method scaffold"),
        ("fedavg", {"aggregation.rule": "median", "flower.secure_aggregation": True}, "needs every single upload"),
    ],
)
def test_options_that_exclude_each_other_are_refused_before_any_message(
    method: str, changes: dict[str, Any], message: str
) -> None:
    config = run_config(method, **changes)
    nodes = grid(config)
    with pytest.raises(ValueError, match=message):
        serve(nodes, config, model, test_data)
    assert nodes.log == []


def test_bad_test_data_is_an_error_before_any_message() -> None:
    config = run_config("fedavg")
    nodes = grid(config)
    with pytest.raises(ValueError, match="one whole number per sample"):
        serve(nodes, config, model, lambda: ([[0.0]], [0.5]))
    assert nodes.log == []


def killed_run(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    config = run_config("fedavg", **FULL, **{"flower.out": str(tmp_path), **changes})
    nodes = grid(config)
    killed_in(nodes, 2, client=3)
    with pytest.raises(Killed):
        serve(nodes, config, model, test_data)
    return config


def test_a_continued_run_takes_late_clients_though_their_number_was_not_given(tmp_path: Path) -> None:
    config = killed_run(tmp_path, **{"flower.clients": 0})
    nodes = grid(config)
    for client in (3, 4):
        nodes.node_of(client).online = False

    def arriving(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.group_id == "2" and not nodes.node_of(3).online:
            nodes.start(3)
            nodes.start(4)
        return reply

    nodes.mischief = arriving
    history = finish(nodes, config).history
    assert [record.participants for record in history] == [CLIENTS, 3, CLIENTS]
    assert FederationSetup.read(tmp_path).clients == CLIENTS


def test_a_continued_run_waits_for_the_clients_that_it_had(tmp_path: Path) -> None:
    config = killed_run(tmp_path, **{"flower.clients": 0, "flower.patience": 300.0})
    nodes = grid(config)
    nodes.node_of(4).online = False

    def arriving(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "query.info" and client == 3:
            nodes.start(4)
        return reply

    nodes.mischief = arriving
    assert [record.participants for record in finish(nodes, config).history] == [CLIENTS] * 3


def test_a_run_is_not_continued_with_another_number_of_clients(tmp_path: Path) -> None:
    config = killed_run(tmp_path)
    with pytest.raises(ValueError, match=r"flower.clients = 10 is not allowed: the run that is continued has 5"):
        serve(grid(config), {**config, "flower.clients": 10}, model, test_data)
    assert not RunFolder(tmp_path).finished


def test_classes_are_not_counted_again_with_nearly_the_same_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four sites in one run and five in the next would show what the fifth has; the same four show nothing."""

    def start(name: str, absent: int | None, **changes: Any) -> object:
        private = {"privacy.mode": "he", "flower.out": str(tmp_path / name), "run.rounds": 1}
        config = run_config("fedavg", **{"participation.fraction": 1.0, **private, **changes})
        nodes = grid(config)
        if absent is not None:
            nodes.node_of(absent).online = False
        return serve(nodes, config, model, test_data)

    assert start("four", 4) is not None
    memory = tmp_path / "gatherings.json"
    assert (json.loads(memory.read_text()), memory.stat().st_mode & 0o777) == ([["0", "1", "2", "3"]], 0o600)
    assert start("four-again", 4) is not None
    with pytest.raises(ValueError, match="differs from sums decrypted before by fewer than 3 clients"):
        start("five", None)
    assert start("noisy", None, **{"privacy.epsilon": 1.0}) is not None
    assert "76 % of all class counts" in caplog.text


def test_the_mean_size_of_clients_is_not_that_of_one_that_claims_a_billion() -> None:
    honest = np.full(9, 100)
    assert plausible_mean(honest) == 100
    assert plausible_mean(np.append(honest, 10**9)) == 190
    assert plausible_mean(np.array([100, 10**9])) == 550
    spread = np.array([20, 50, 80, 100, 400])
    assert plausible_mean(spread) == spread.mean()
