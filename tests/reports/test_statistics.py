"""Paired tests over seeds: corrected for the number of methods, with intervals of the same level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedwcm.reports.statistics import (
    Difference,
    PairedTest,
    Spread,
    bootstrap_interval,
    differences,
    holm,
    paired_test,
    seed_test,
    spread,
)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=8), st.integers(0, 9))
def test_what_all_runs_of_a_seed_share_does_not_count(pairs: list[tuple[float, float]], seed: int) -> None:
    one, other = np.array(pairs).T
    luck = np.random.default_rng(seed).normal(size=len(pairs))
    plain = paired_test((one - other).tolist())
    shifted = paired_test(((one + luck) - (other + luck)).tolist())
    if np.ptp(one - other) > 1e-6:
        assert shifted.p == pytest.approx(plain.p, abs=1e-6)
        known = stats.ttest_rel(one, other)
        assert plain.p == pytest.approx(known.pvalue)
        assert (plain.low, plain.high) == pytest.approx(tuple(known.confidence_interval(0.95)), abs=1e-9)
    assert plain.low - 1e-12 <= plain.mean <= plain.high + 1e-12


def test_equal_differences_prove_no_more_than_their_number() -> None:
    assert paired_test([0.1]) is None
    tests = [paired_test([0.25] * seeds) for seeds in (2, 6)]
    assert [test.p for test in tests if test] == [0.5, 2.0**-5]
    nothing = paired_test([0.0, 0.0, 0.0])
    assert nothing.p == 1.0


def test_seeds_are_the_units_and_places_count_that_all_of_them_have() -> None:
    table = {("a", 0): 0.1, ("a", 1): 0.2, ("b", 0): 0.3, ("b", 1): 0.8, ("c", 0): 9.0}
    assert seed_test(table) == paired_test([0.2, 0.5])
    assert seed_test({("a", 0): 0.1, ("b", 1): 0.2}) is None


def test_the_spread_is_that_of_a_sample_and_none_of_one_number() -> None:
    assert spread([0.4]) == Spread(0.4, 0.0, 1)
    assert spread([1.0, 3.0]) == Spread(2.0, pytest.approx(2**0.5), 2)  # type: ignore[arg-type]


def test_holm_multiplies_the_smallest_by_their_number_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_more_methods_ask_for_a_smaller_p_value() -> None:
    values = {"a": {0: 0.9, 1: 0.91, 2: 0.905}, "b": {0: 0.8, 1: 0.79, 2: 0.81}}
    alone = differences(values)[0]
    crowd = differences({**values, **{f"c{i}": {0: 0.5, 1: 0.9, 2: 0.1} for i in range(8)}})
    among = next(pair for pair in crowd if (pair.method, pair.other) == ("a", "b"))
    assert alone.verdict == "better"
    assert alone.corrected is not None
    assert among.corrected == pytest.approx(9 * alone.corrected)
    assert len(crowd) == 10 * 9 / 2


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=6))
def test_an_interval_leaves_out_zero_just_if_the_verdict_does(rows: list[list[float]]) -> None:
    for pair in differences({f"m{i}": dict(enumerate(row)) for i, row in enumerate(rows)}):
        assert pair.corrected is not None
        low, high = pair.interval
        assert (low > 0 or high < 0) == (pair.verdict in ("better", "worse")) or abs(pair.corrected - 0.05) < 1e-9
        assert low <= pair.test.low + 1e-12 <= pair.test.high + 2e-12 <= high + 3e-12


def _decides(pair: Difference, seeds: int) -> bool:
    error = pair.test.error * (pair.seeds / seeds) ** 0.5
    level = 0.05 * pair.test.p / (pair.corrected or pair.test.p)
    reach, distance = stats.t.ppf(1 - level / 2, seeds - 1) * error, abs(pair.test.mean)
    return bool(reach + stats.t.ppf(0.8, seeds - 1) * error <= distance or distance + reach <= pair.margin)


def test_a_difference_is_equivalent_or_open_and_says_how_many_seeds_it_needs() -> None:
    rng = np.random.default_rng(0)
    truth, noise = rng.normal(0.8, 0.02, 400), rng.normal(0, 0.004, 400)

    def judged(lead: float, seeds: int) -> Difference:
        sides = {"a": truth + lead + noise, "b": truth}
        (pair,) = differences({name: dict(enumerate(values[:seeds].tolist())) for name, values in sides.items()})
        return pair

    assert judged(0.0, 12).verdict == "equivalent"
    assert judged(0.05, 12).verdict == "better"
    undecided = judged(0.004, 5)
    assert undecided.verdict == "undecided"
    assert undecided.seeds_needed is not None
    assert judged(0.004, 2 * undecided.seeds_needed).verdict in ("better", "equivalent")
    needed = undecided.seeds_needed  # by the definition: detected with probability 0.8, or within the margin
    assert next(n for n in range(6, 60) if _decides(undecided, n)) == needed
    coin = {"a": {0: 0.9, 1: 0.1, 2: 0.9, 3: 0.1}, "b": {0: 0.1, 1: 0.9, 2: 0.1, 3: 0.9001}}
    assert differences(coin)[0].seeds_needed is None, "more than anybody will run"
    (equal,) = differences({name: dict.fromkeys(range(3), 0.5) for name in "ab"})
    assert equal.verdict == "equivalent"
    (constant,) = differences({"a": dict.fromkeys(range(3), 0.75), "b": dict.fromkeys(range(3), 0.5)})
    assert (constant.verdict, constant.interval, constant.seeds_needed) == ("undecided", (0.0, 0.25), 6)


@pytest.mark.parametrize(("seeds", "said"), [(1000, 1000), (1001, None)])
def test_more_than_a_thousand_seeds_are_more_than_anybody_will_run(seeds: int, said: int | None) -> None:
    def distance(n: int) -> float:
        return float((stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)) * (10 / n) ** 0.5)

    between = (distance(seeds) + distance(seeds - 1)) / 2  # these seeds decide, and one less does not
    test = PairedTest(mean=between, error=1.0, number=10, p=0.5)
    assert Difference("a", "b", 10, test, corrected=0.5, ahead=True).seeds_needed == said


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_method_is_not_better_for_seeds_that_the_other_does_not_have(sign: float) -> None:
    values = {
        "a": {0: sign * 0.9, 1: sign * 0.5, 2: sign * 0.5},
        "b": {1: sign * 0.6, 2: sign * 0.601},
    }
    (pair,) = differences(values, lower_is_better=sign < 0)
    assert (pair.method, pair.other, pair.seeds) == ("a", "b", 2)
    assert pair.verdict == "worse"


def test_a_method_with_few_seeds_changes_nothing_between_the_others() -> None:
    several = {
        "a": {0: 0.700, 1: 0.752, 2: 0.748, 3: 0.751, 4: 0.749, 5: 0.750},
        "b": {0: 0.701, 1: 0.700, 2: 0.699, 3: 0.702, 4: 0.698, 5: 0.700},
    }
    (alone,) = differences(several)
    among = [pair for pair in differences({**several, "c": {0: 0.4}}) if pair.other == "b"]
    assert alone.verdict == "better"
    assert among == [alone]


def test_equal_differences_of_values_that_vary_are_judged_by_how_they_vary() -> None:
    few = {"a": {0: 0.944, 1: 0.888, 2: 0.889}, "b": {0: 0.056, 1: 0.0, 2: 0.001}}
    (pair,) = differences(few)
    assert pair.verdict == "better"
    assert pair.test.low < pair.test.mean < pair.test.high
    many = {"a": {seed: 0.1 * seed for seed in range(10)}, "b": {seed: 0.1 * seed - 0.02 for seed in range(10)}}
    assert differences(many)[0].verdict == "better"  # by their signs: the spread of the seeds says nothing
    constant = {"a": dict.fromkeys(range(3), 0.9), "b": dict.fromkeys(range(3), 0.1)}
    assert differences(constant)[0].verdict == "undecided"


def test_a_method_of_one_seed_does_not_take_the_verdict_from_the_others() -> None:
    judged = {"a": {0: 0.8, 1: 0.82, 2: 0.81}, "b": {0: 0.7, 1: 0.71, 2: 0.72}}
    alone = differences(judged)[0]
    pair = differences({"lucky": {0: 0.99}, **judged})[0]
    assert (
        (pair.method, pair.other, pair.test) == (alone.method, alone.other, alone.test) == ("a", "b", alone.test)
    )


def test_a_method_of_five_seeds_ranks_before_one_of_fewer() -> None:
    few, five = {0: 0.9, 1: 0.9, 2: 0.9, 3: 0.9}, dict.fromkeys(range(5), 0.5)
    assert [(pair.method, pair.other) for pair in differences({"few": few, "five": five})] == [("five", "few")]
    assert differences({"few": few, "less": dict.fromkeys(range(4), 0.5)})[0].method == "few"
    rng = np.random.default_rng(1)
    sides = {
        name: dict(enumerate(rng.normal(0.8 + lead, 0.02, 8))) for name, lead in (("a", 0.012), ("b", 0), ("c", 0))
    }
    for pair in differences(sides):
        assert pair.verdict == "undecided"
        assert pair.seeds_needed == next((n for n in range(9, 1001) if _decides(pair, n)), None)


def test_of_two_methods_with_equal_means_neither_is_ahead() -> None:
    for lower_is_better in (False, True):
        (pair,) = differences({"a": {0: 1.0, 1: 3.0}, "b": {0: 3.0, 1: 1.0}}, lower_is_better=lower_is_better)
        assert not pair.ahead


def test_a_bootstrap_interval_leaves_out_a_fortieth_at_either_end() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    low, high = bootstrap_interval(values)
    reach = 1.959964 * values.std() / 1000**0.5
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.05 * reach)
