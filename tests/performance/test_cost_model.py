"""The cost model of a cluster: what it must say whatever the constants are."""

import pytest
from benchmarks.cost_model import LOADS, Load, forecast, round_cost

FREE = {"driver_seconds_per_block": 0.0, "sum_seconds_per_number": 0.0, "call_seconds": 0.0}
COSTS = {"driver_seconds_per_block": 1e-3, "sum_seconds_per_number": 3e-9, "call_seconds": 1e-3}


@pytest.mark.parametrize(("workers", "waves"), [(1, 100), (8, 13), (64, 2), (100, 1), (512, 1)])
def test_without_messages_a_round_is_its_waves(workers: int, waves: int) -> None:
    cost = round_cost(Load("small", 100, 2.0, 0), workers, FREE)
    assert cost.seconds == pytest.approx(2.0 * waves)


def test_the_driver_counts_only_where_it_is_slower_than_training() -> None:
    slow, fast = (round_cost(Load("", 1000, seconds, 0), 100, COSTS) for seconds in (1.0, 0.01))
    assert slow.seconds - slow.tree == pytest.approx(slow.training)
    assert fast.seconds - fast.tree == pytest.approx(fast.driver)


def test_the_tree_grows_with_the_logarithm_and_the_broadcast_with_the_nodes() -> None:
    load = Load("", 512, 1.0, 1_000_000)
    few, many = (round_cost(load, workers, COSTS) for workers in (8, 512))
    assert many.tree / few.tree == pytest.approx(9 / 3)
    assert many.broadcast / few.broadcast == pytest.approx(64)


def test_one_worker_is_fully_used() -> None:
    assert all("| 100% |" in forecast(load, COSTS).splitlines()[2] for load in LOADS)
