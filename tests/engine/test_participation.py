"""Choices of clients, unequal steps, and a simulated clock with late answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.core.types import Ints
from fedwcm.engine.options import ParticipationOptions
from fedwcm.engine.participation import Available, Known, Oort, Turns, UnequalEpochs
from tests.factories import watch_updates

SMALL: dict[str, Any] = {"dataset": "digits", "clients": 8, "epochs": 1, "participation": 0.5, "rounds": 4}


def known(**changed: Any) -> Known:
    """Ten clients that have all taken part in round 3 of 5, equally large, fast and bad."""
    usual: dict[str, Any] = {
        **{"round": 5, "size": 3, "samples": np.full(10, 20), "batches": np.full(10, 2), "steps": np.full(10, 4)},
        **{"seconds": np.ones(10), "losses": np.ones(10), "last": np.full(10, 3)},
        **{"free": np.ones(10, dtype=bool), "counts": lambda: np.ones((10, 2)), "rng": np.random.default_rng(0)},
    }
    return Known(**{**usual, **changed})


def test_oort_prefers_large_losses_punishes_slow_clients_and_explores_new_ones() -> None:
    losses = np.where(np.arange(10) < 3, 5.0, 0.1)
    assert set(Oort(exploration=0.0).choose(known(losses=losses))) == {0, 1, 2}
    slow = np.where(np.arange(10) == 0, 20.0, 1.0)
    assert 0 not in Oort(exploration=0.0).choose(known(losses=losses, seconds=slow))
    assert 0 in Oort(exploration=0.0, penalty=0.0).choose(known(losses=losses, seconds=slow))
    last = np.where(np.arange(10) == 9, -1, 3)
    assert 9 in Oort(exploration=0.34).choose(known(losses=np.where(last < 0, np.nan, losses), last=last))
    nobody = known(losses=np.full(10, np.nan), last=np.full(10, -1))
    assert len(set(Oort().choose(nobody))) == 3


def test_a_trace_says_who_is_there(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,start,end\n0,0,2\n1,0,9\n2,5,6\n")
    assert set(Available(trace=str(trace)).choose(known(round=0))) == {0, 1}
    assert set(Available(trace=str(trace)).choose(known(round=5))) == {1, 2}
    assert set(Available(trace=str(trace), period=6).choose(known(round=7))) == {0, 1}
    assert len(Available(trace=str(trace)).choose(known(round=50))) == 0
    trace.write_text("client,start\n0,0\n")
    with pytest.raises(ValueError, match="is not a CSV file of whole numbers in client, start and end"):
        Available(trace=str(trace)).choose(known())


def test_unequal_epochs_are_whole_passes() -> None:
    ids, steps = UnequalEpochs(least=2, most=3).choose(known())
    assert len(ids) == 3
    assert set(steps) <= {4, 6}
    same = known()
    drawn = np.concatenate([UnequalEpochs(least=2, most=3).choose(same)[1] for _ in range(20)])
    assert {*drawn.tolist()} == {4, 6}


class Rotating(fedwcm.Participation):
    """Two clients in turn; the first of them takes one step, the other five."""

    def choose(self, known: Known) -> tuple[Ints, Ints]:
        first = 2 * known.round % len(known.free)
        assert (known.last >= 0).sum() == min(2 * known.round, 8)
        assert (~np.isnan(known.losses)).sum() == min(2 * known.round, 8)
        return np.array([first + 1, first]), np.array([5, 1])


@pytest.mark.parametrize("method", ["fedavg", "fednova", "scaffold", "fedcm"])
def test_clients_take_the_steps_that_they_are_told_on_every_backend(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, models = watch_updates(monkeypatch), []
    for backend in ("sequential", "vectorized"):
        result = fedwcm.run(method, sampling=Rotating(), backend=backend, **SMALL)
        assert [record.clients for record in result.history] == [(0, 1), (2, 3), (4, 5), (6, 7)]
        models.append(torch.cat([p.flatten() for p in result.model.parameters()]))
    assert all(cohort.steps.tolist() == [1, 5] for cohort, _ in seen)
    torch.testing.assert_close(*models, rtol=1e-4, atol=1e-5)


def test_a_run_with_a_choice_resumes_exactly(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        **SMALL,
        "sampling": "oort[exploration=0.2]",
        "settings": {"participation.speeds": 1.0},
    }
    whole = fedwcm.run("fedavg", **{**options, "rounds": 6})
    fedwcm.run("fedavg", out=tmp_path / "run", **options)
    longer = fedwcm.run(out=tmp_path / "run", resume=True, rounds=6)
    assert longer.summary.final_accuracy == whole.summary.final_accuracy
    assert [r.clients for r in longer.history] == [r.clients for r in whole.history]
    times = [record.number("simulated_time") or 0.0 for record in longer.history]
    assert times == sorted(times)
    assert times == [record.number("simulated_time") for record in whole.history]


LATE = {"participation.speeds": 1.5, "participation.deadline": 1.0}


def test_late_answers_are_left_out_or_start_from_an_older_model(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_updates(monkeypatch)
    dropped = fedwcm.run("fedbuff", settings=LATE, **{**SMALL, "rounds": 8})
    assert not any(cohort.staleness.any() for cohort, _ in seen)
    seen.clear()
    kept = fedwcm.run("fedbuff", settings={**LATE, "participation.staleness": 3}, **{**SMALL, "rounds": 8})
    ages = np.concatenate([cohort.staleness for cohort, _ in seen])
    assert ages.max() in (1, 2, 3)
    for cohort, outcome in seen:
        np.testing.assert_allclose(outcome.weights, (1 + cohort.staleness) ** -0.5 / len(cohort))
    assert dropped.history[-1].number("simulated_time") == kept.history[-1].number("simulated_time") == 8.0


def test_a_late_answer_is_what_the_client_made_of_the_older_model(tmp_path: Path) -> None:
    """One client, twice as long as the deadline: round 2 applies to x_0 what it made of x_0 in round 1."""
    options: dict[str, Any] = {**SMALL, "clients": 2, "participation": 1.0, "method": "fedbuff[power=0]"}
    on_time = fedwcm.run(**{**options, "rounds": 1})
    late = {"participation.deadline": 0.6, "participation.staleness": 2}
    twice = fedwcm.run(**{**options, "rounds": 2}, settings=late)
    assert [record.participants for record in twice.history] == [0, 2]
    assert [record.number("staleness") for record in twice.history] == [None, 1.0]
    for (name, one), other in zip(on_time.model.named_parameters(), twice.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=name)
    fedwcm.run(**{**options, "rounds": 1}, settings=late, out=tmp_path / "run")
    resumed = fedwcm.run(out=tmp_path / "run", resume=True, rounds=2)
    assert resumed.summary.final_accuracy == twice.summary.final_accuracy


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("scaffold", {**LATE, "participation.staleness": 1}, "whose clients keep state"),
        ("mime", {**LATE, "participation.staleness": 1}, "or send something before they train"),
        ("fedavg", {"participation.staleness": 1}, "without a deadline"),
        ("fedavg", {"participation.sampling": "ort"}, "unknown value for participation.sampling: 'ort'.*oort"),
        ("fedavg", {"participation.sampling": "collections:Counter"}, "is not a subclass of fedwcm.Participation"),
    ],
)
def test_what_is_not_possible_is_named(method: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fedwcm.run(method, settings=options, **SMALL)


class Wrong(fedwcm.Participation):
    def __init_subclass__(cls, outcome: Callable[[], object]) -> None:
        cls.choose = lambda self, known: outcome()  # type: ignore[assignment, return-value]

    def choose(self, known: Known) -> Ints:
        raise NotImplementedError


class Twice(Wrong, outcome=lambda: np.array([1, 1])):
    pass


class NoSteps(Wrong, outcome=lambda: (np.array([1, 2]), np.array([1, 0]))):
    pass


@pytest.mark.parametrize(("choice", "message"), [(Twice, "different ids"), (NoSteps, "a whole number from 1")])
def test_a_choice_that_is_no_choice_is_named(choice: type[fedwcm.Participation], message: str) -> None:
    with pytest.raises(ValueError, match=f"{choice.__name__}.choose returned .*{message}"):
        fedwcm.run("fedavg", sampling=choice, **SMALL)


def test_the_options_of_a_choice_are_recorded_and_nothing_changes_without_one(tmp_path: Path) -> None:
    fedwcm.run("fedavg", sampling=UnequalEpochs(most=2), out=tmp_path / "run", **SMALL)
    assert 'sampling = "unequal-epochs[most=2]"' in (tmp_path / "run" / "config.toml").read_text()
    assert ParticipationOptions().draws
    assert not hasattr(Turns, "draws")
