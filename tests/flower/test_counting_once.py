"""Classes are counted once for a folder: the difference of two sums would be a client's own counts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.run import Run
from fedwcm.flower.app.options import read
from fedwcm.flower.server.setup import FederationSetup, plausible_mean

from .federation import CLIENTS, FULL, finish, grid, in_simulator, on_flower
from .test_resume import assert_same, kill_in
from .wire import WireGrid, fail, fall_silent, strike


def fail_in_statistics(**options: Any) -> WireGrid:
    """A run in which no client reports its statistics."""
    nodes = grid("fedwcm", strike(fail, kind="query.statistics"), **options)
    with pytest.raises(RuntimeError, match=r"0 clients reported their statistics, flower.min_clients = 1 are"):
        finish(nodes)
    return nodes


def test_a_run_that_fails_after_counting_does_not_count_again(tmp_path: Path) -> None:
    assert "query.counts" in fail_in_statistics(**{"flower.out": str(tmp_path)}).kinds()
    again = grid("fedwcm", **{"flower.out": str(tmp_path)})
    assert_same(in_simulator("fedwcm"), finish(again))
    assert "query.counts" not in again.kinds()
    assert "query.statistics" in again.kinds()


def test_too_few_counted_clients_stay_too_few(tmp_path: Path) -> None:
    options = {**FULL, "flower.out": str(tmp_path), "flower.min_clients": CLIENTS}
    nodes, again = grid("fedavg", strike(fall_silent, {2}, "query.counts"), **options), grid("fedavg", **options)
    for attempt in (nodes, again):
        with pytest.raises(RuntimeError, match=r"4 clients were counted, flower.min_clients = 5 are needed"):
            finish(attempt)
    assert "query.counts" not in again.kinds()
    on_flower("fedavg", **{**options, "flower.min_clients": 4})


@pytest.mark.parametrize("mode", ["none", "he"])
def test_a_client_that_comes_while_classes_are_counted_is_not_counted(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = CLIENTS - 1
    out = tmp_path / "run"
    nodes = grid("fedwcm", **{"flower.out": str(out), "privacy.mode": mode})
    nodes.node_of(late).online = False
    online = nodes.get_node_ids

    def connected() -> list[int]:
        nodes.node_of(late).online |= nodes.log != []  # the others were waited for, and have said who they are
        return online()

    monkeypatch.setattr(nodes, "get_node_ids", connected)
    finish(nodes)
    setup = FederationSetup.read(out)
    assert setup.counted == list(range(late))
    assert set(setup.first_samples) == set(range(CLIENTS))
    assert setup.not_counted == {late: "it was not connected when the counting of classes began"}
    assert len(setup.statistics["score"]) == late
    assert not {"query.counts", "query.encrypted", "query.statistics"} & {k for c, k, _ in nodes.log if c == late}
    with pytest.raises(RuntimeError, match=r"4 clients were counted, flower.min_clients = 5 are needed"):
        setup.require_enough(CLIENTS)


def test_counts_are_not_taken_for_options_that_need_others(tmp_path: Path) -> None:
    fail_in_statistics(**{"flower.out": str(tmp_path)})
    with pytest.raises(ValueError, match=r"counted with other options \(privacy.epsilon: None is now 0.5\)"):
        on_flower("fedwcm", **{"flower.out": str(tmp_path), "privacy.epsilon": 0.5})


def test_more_answers_than_a_round_asks_for_are_refused_before_counting() -> None:
    message = (
        r"flower.min_clients = 4 is not allowed: it must be at most 3, as participation.fraction = 0.6 asks 3 of 5"
    )
    nodes = grid("fedavg", **{"flower.clients": 0, "flower.min_clients": 4})
    with pytest.raises(ValueError, match=message):
        finish(nodes)
    assert nodes.kinds() == {"query.info"}
    config = {**nodes.run_config, "flower.clients": CLIENTS}
    with pytest.raises(ValueError, match=message):
        read(config)
    read({**config, "participation.sampling": "bernoulli"})


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
    nodes = grid(method, **changes)
    with pytest.raises(ValueError, match=message):
        finish(nodes)
    assert nodes.log == []


def test_bad_test_data_is_an_error_before_any_message() -> None:
    nodes = grid("fedavg")
    with pytest.raises(ValueError, match="one whole number per sample"):
        finish(nodes, evaluate=lambda: ([[0.0]], [0.5]))
    assert nodes.log == []


def restart(tmp_path: Path, **changes: Any) -> WireGrid:
    """A run that was killed, and the same nodes anew."""
    options = {**FULL, "flower.out": str(tmp_path), **changes}
    kill_in(grid("fedavg", **options), 2, client=3)
    return grid("fedavg", **options)


def test_a_continued_run_takes_late_clients_though_their_number_was_not_given(tmp_path: Path) -> None:
    nodes = restart(tmp_path, **{"flower.clients": 0})
    for client in (3, 4):
        nodes.node_of(client).online = False

    def arrive(_: Message, reply: Message) -> Message:
        if not nodes.node_of(3).online:
            nodes.start(3)
            nodes.start(4)
        return reply

    nodes.mischief = strike(arrive, rounds={2})
    assert [record.participants for record in finish(nodes).history] == [CLIENTS, 3, CLIENTS]
    assert FederationSetup.read(tmp_path).clients == CLIENTS


def test_a_continued_run_waits_for_the_clients_that_it_had(tmp_path: Path) -> None:
    nodes = restart(tmp_path, **{"flower.clients": 0, "flower.patience": 300.0})
    nodes.node_of(4).online = False

    def arrive(_: Message, reply: Message) -> Message:
        nodes.start(4)
        return reply

    nodes.mischief = strike(arrive, {3}, "query.info")
    assert [record.participants for record in finish(nodes).history] == [CLIENTS] * 3


def test_a_run_is_not_continued_with_another_number_of_clients(tmp_path: Path) -> None:
    nodes = restart(tmp_path)
    with pytest.raises(ValueError, match=r"flower.clients = 10 is not allowed: the run that is continued has 5"):
        finish(nodes, **{"flower.clients": 10})
    assert not RunFolder(tmp_path).finished


def test_classes_are_not_counted_again_with_nearly_the_same_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four sites in one run and five in the next would show what the fifth has; the same four show nothing."""

    def start(name: str, absent: int | None, **changes: Any) -> Run:
        private = {"privacy.mode": "he", "flower.out": str(tmp_path / name), "run.rounds": 1}
        nodes = grid("fedavg", **FULL, **private, **changes)
        if absent is not None:
            nodes.node_of(absent).online = False
        return finish(nodes)

    start("four", 4)
    memory = tmp_path / "gatherings.json"
    assert (json.loads(memory.read_text()), memory.stat().st_mode & 0o777) == ([["0", "1", "2", "3"]], 0o600)
    start("four-again", 4)
    with pytest.raises(ValueError, match="differs from sums decrypted before by fewer than 3 clients"):
        start("five", None)
    start("noisy", None, **{"privacy.epsilon": 1.0})
    assert "76 % of all class counts" in caplog.text


def test_the_mean_size_of_clients_is_not_that_of_one_that_claims_a_billion() -> None:
    honest = np.full(9, 100)
    assert plausible_mean(honest) == 100
    assert plausible_mean(np.append(honest, 10**9)) == 190
    assert plausible_mean(np.array([100, 10**9])) == 550
    spread = np.array([20, 50, 80, 100, 400])
    assert plausible_mean(spread) == spread.mean()
