"""The profile of a run: where its time went, on request."""

import time
from typing import Any

import fedwcm
from fedwcm.engine.rounds import Clock

PHASES = {"clients", "server", "evaluation"}


def test_phases_add_up_and_start_anew_once_read() -> None:
    clock = Clock()
    for _ in range(2):
        with clock.phase("one"):
            time.sleep(0.02)
    with clock.phase("other"):
        time.sleep(0.01)
    spent = clock.read()
    assert spent["one"] >= 0.04
    assert spent["one"] > spent["other"] >= 0.01
    assert clock.read() == {}


def test_a_profile_is_recorded_on_request_and_accounts_for_most_of_the_time() -> None:
    settings: dict[str, object] = {"run.profile": True, "run.checkpoint_every": 2}
    result = fedwcm.run("mime", settings=settings, dataset="digits", clients=5, rounds=5, eval_every=2)
    rows: list[Any] = [record.extra["phase_seconds"] for record in result.history]
    assert [set(row) for row in rows] == [PHASES, PHASES | {"checkpoint"}, PHASES | {"checkpoint"}]
    spent = sum(sum(row.values()) for row in rows)
    assert spent > 0.5 * result.history[-1].seconds


def test_without_the_request_nothing_is_recorded() -> None:
    result = fedwcm.run("fedavg", dataset="digits", clients=5, rounds=1)
    assert "phase_seconds" not in result.history[-1].to_json()
