"""The benchmark of natural tails: what its tables weigh, and the ideas that it measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.natural import second
from benchmarks.natural.leads import AbsentShifted, RowsByClass, WarmStart
from benchmarks.natural.run import curve, finished
from benchmarks.natural.second_tables import as_fitted, as_trained, at_best, print_tables, tails_of
from benchmarks.natural.tables import (
    by_tail,
    print_follows,
    print_leads,
    print_limits,
    print_phase,
    reached,
    with_auto,
)

import fedwcm
from fedwcm.losses.prior_ce import PriorCE

SMALL: Any = {"dataset": "digits", "clients": 4, "beta": 1.0, "imbalance": 0.1, "participation": 1.0, "rounds": 3}


def test_weighted_samples_count_as_if_they_were_repeated() -> None:
    rng = np.random.default_rng(0)
    log_p, labels, counts = rng.normal(size=(60, 3)), rng.integers(0, 3, 60), np.array([50, 30, 5])
    times = np.array([4, 2, 1])[labels]
    weighted = curve(log_p, labels, counts, times)
    repeated = curve(log_p.repeat(times, axis=0), labels.repeat(times), counts)
    assert all(one == pytest.approx(other, abs=2e-5) for one, other in zip(weighted, repeated, strict=True))


def test_a_curve_is_above_another_by_what_it_reaches_at_its_best_strength() -> None:
    points = [{"accuracy": 0.9, "balanced": 0.4}, {"accuracy": 0.7, "balanced": 0.7}]
    assert reached(points).tolist() == pytest.approx([0.7, 0.7, 0.9])


def points(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    """A curve over the strengths −1, 0, 1, of accuracy and balanced accuracy."""
    return [{"tau": t - 1.0, "accuracy": a, "balanced": b} for t, (a, b) in enumerate(pairs)]


def test_auto_takes_the_mean_over_draws_and_a_diverged_run_counts_nothing() -> None:
    low, high = points((0, 0), (0.4, 0.4), (0, 0)), points((0.9, 0.9), (0.6, 0.6), (0, 0))
    runs: dict[tuple[str, str, int, int], dict[str, Any]] = {
        ("beats", arm, 200, draw): {"val": curve, "test": curve}
        for arm, curves in {"a": (high, low, low), "b": (low, high, high)}.items()
        for draw, curve in enumerate(curves)
    }
    runs |= {("beats", "c", 200, 0): {"val": high}, ("beats", "c", 200, 1): {}, ("beats", "c", 200, 2): {}}
    runs |= {("beats", "fedavg", 200, draw): {} for draw in range(3)}
    (tail,) = tails_of(runs)
    arms = {arm: arm for arm in "abc"}
    assert [tail.choose(200, 0.0, draws, arms) for draws in (1, 3, 9)] == ["a", "b", "b"]


def test_an_arm_is_used_as_trained_or_at_a_fitted_strength() -> None:
    val, test = points((0.5, 0.7), (0.6, 0.6), (0.8, 0.2)), points((0.3, 0.5), (0.5, 0.4), (0.4, 0.8))
    one = {"val": val, "test": test, "val, natural": val, "test, natural": points((1, 1), (1, 1), (1, 1))}
    plain, natural = tails_of({("cifar", "fedavg", 1, 0): one})
    assert (plain.mix, natural.mix) == ("uniform", "natural")
    assert [plain.reached("fedavg", 1, 0.0, how) for how in (as_trained, as_fitted, at_best)] == [0.4, 0.5, 0.8]
    assert [plain.reached("fedavg", 1, 1.0, how) for how in (as_trained, as_fitted, at_best)] == [0.5, 0.4, 0.5]
    assert natural.reached("fedavg", 1, 0.5, as_fitted) == 1.0


def test_an_idea_without_effect_is_its_base() -> None:
    alone = SMALL | {"clients": 1}
    rows, whole = (fedwcm.run(method, **alone).summary for method in (RowsByClass(), "fedavg"))
    assert rows.test_loss == pytest.approx(whole.test_loss, rel=1e-5)
    shifted, prior = (
        fedwcm.run("fedavg", loss=loss, **SMALL).summary
        for loss in (AbsentShifted(absent=0.0, prior="global"), PriorCE(prior="global"))
    )
    assert shifted.test_loss == prior.test_loss


def test_a_warm_start_has_the_momentum_grow_in() -> None:
    history = fedwcm.run(WarmStart(adaptive=False), **SMALL).history
    assert [record.number("alpha") for record in history] == pytest.approx([1.0, 1 / 2, 1 / 3])


def test_the_pages_have_the_tables_that_the_kept_runs_make(capsys: pytest.CaptureFixture[str]) -> None:
    print_phase(with_auto(by_tail(finished("judge"))), "test")
    for show in (print_follows, print_leads, print_limits):
        show()
    print_tables(second.finished("draws"), second.finished("judge"))
    made = table_rows(capsys.readouterr().out)
    pages = [Path("docs/results", name).read_text(encoding="utf-8") for name in ("natural.md", "natural-auto.md")]
    assert table_rows("\n".join(pages)) == made


def table_rows(text: str) -> set[str]:
    return {line for line in text.splitlines() if line.startswith("| ")}
