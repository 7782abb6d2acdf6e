"""The benchmark's arithmetic: ratios, overheads, memory, and what counts as measured."""

from typing import Any

import pytest
from benchmarks.bars import (
    BARS,
    FREE_MEMORY,
    Bar,
    NotMeasuredError,
    allowed_memory,
    checkpoint_overhead,
    overhead,
    paired_ratio,
    speedup,
    speedup_over_best,
)


def results(warmup: int = 0, **seconds: list[float] | None) -> dict[str, Any]:
    """Results of one group, J; None stands for a contender that failed."""
    contenders = {
        name.replace("_", " "): {"seconds": values} if values is not None else {"error": "ended"}
        for name, values in seconds.items()
    }
    return {"groups": {"J": {"warmup": warmup, "contenders": contenders}}}


def test_a_machine_that_gets_slower_leaves_a_ratio_as_it_is() -> None:
    pace = [1.0, 1.5, 7.0, 30.0]
    assert paired_ratio([3 * p for p in pace], [2 * p for p in pace]) == pytest.approx(1.5)


def test_one_disturbed_sweep_does_not_decide() -> None:
    assert paired_ratio([2.0, 2.0, 90.0], [1.0, 1.0, 1.0]) == 2.0


def test_contenders_with_different_numbers_of_rounds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0, 1.0], [1.0])


def test_speedup_is_above_one_for_the_faster() -> None:
    assert speedup("J", "plain")(results(plain=[4.0, 4.0], fedwcm=[1.0, 1.0])) == 4.0


def test_the_best_of_a_peer_counts_and_failed_variants_do_not() -> None:
    measured = results(pfl_a=[3.0], pfl_b=[2.0], pfl_c=None, other=[0.1], fedwcm=[1.0])
    assert speedup_over_best("J", "pfl")(measured) == 2.0


def test_overhead_is_that_of_the_worst() -> None:
    measured = results(fedavg=[1.0, 1.0], fedcm=[1.05, 1.05], fedwcm=[1.2, 1.2])
    assert overhead("J", ("fedcm", "fedwcm"))(measured) == pytest.approx(0.2)


@pytest.mark.parametrize("warmup", [1, 2])
def test_checkpoints_are_found_in_the_rounds_that_have_them(warmup: int) -> None:
    seconds = [1.5 if number % 2 == 0 else 1.0 for number in range(warmup + 1, warmup + 9)]
    measured = results(warmup, **{"fedavg, checkpointed": seconds})
    assert checkpoint_overhead("J", 10)(measured) == pytest.approx(0.05)


def test_memory_allowed_grows_with_clients_in_flight() -> None:
    group = {"data_bytes": 1000, "parameters": 10, "cohort": 2}
    assert allowed_memory(group) == 1000 + 40 + 3 * 40 * 2 + FREE_MEMORY


@pytest.mark.parametrize("measured", [results(), results(plain=None, fedwcm=[1.0])])
def test_what_is_missing_or_failed_is_not_measured(measured: dict[str, Any]) -> None:
    bar = Bar("faster", "at least", 2.0, "{:.1f}", speedup("J", "plain"))
    assert bar.value(measured) is None
    assert bar.line(measured)[-1] == "not measured"
    with pytest.raises(NotMeasuredError):
        bar.measure(measured)


@pytest.mark.parametrize(("sense", "low", "high"), [("at least", False, True), ("at most", True, False)])
def test_a_bar_holds_at_its_limit_and_on_its_side(sense: Any, low: bool, high: bool) -> None:
    bar = Bar("", sense, 1.0, "{}", lambda _: 0.0)
    assert (bar.holds(0.9), bar.holds(1.0), bar.holds(1.1)) == (low, True, high)


def test_no_bar_fails_on_empty_results() -> None:
    assert {bar.value({"groups": {}}) for bar in BARS} == {None}
