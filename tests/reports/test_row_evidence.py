"""Test rows as a second source of evidence, where seeds leave a pair open."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwcm.experiment.records import pack_hits
from fedwcm.reports.load import MethodRuns, load_runs
from fedwcm.reports.statistics import bootstrap_interval
from fedwcm.reports.verdicts import comparison_headline, verdict_records
from tests.reports.folders import amend_summary
from tests.reports.test_verdicts import comparison


def write_hits(groups: list[MethodRuns], hits: dict[str, NDArray[np.bool_]]) -> list[MethodRuns]:
    """Let the runs of a comparison have got these test rows right, alike for every seed; return them."""
    for group in groups:
        right = hits[group.label]
        for run in group.runs:
            half, number = len(right) // 2, int(right.sum())
            first, second = number // 2, number - number // 2
            confusion = ((first, half - first), (half - second, second))
            changes = {"final_accuracy": float(right.mean()), "confusion": confusion, "hits": pack_hits(right)}
            amend_summary(run.path, **changes)
    return load_runs([groups[0].runs[0].path.parent.parent])


def test_test_rows_tell_models_apart_where_one_seed_cannot(tmp_path: Path) -> None:
    rows = np.arange(500)
    groups = comparison(tmp_path, {"fedavg": 0.5, "fedcm": 0.6}, 1)
    apart = write_hits(groups, {"fedavg": rows < 250, "fedcm": rows < 300})
    (overall, *_) = comparison_headline(apart)[0].splitlines()
    assert "no verdict without more seeds. The trained models of fedcm and fedavg differ on these" in overall
    (record,) = [record for record in verdict_records(apart) if "rows_low" in record]
    assert 0.07 < cast(float, record["rows_low"]) < 0.1 < cast(float, record["rows_high"]) < 0.13
    alike = write_hits(groups, {"fedavg": rows % 2 == 0, "fedcm": (rows % 2 == 1) | (rows == 0)})
    assert "fedcm and fedavg do not differ clearly on these" in comparison_headline(alike)[0]


def test_rows_of_another_model_than_the_compared_one_say_nothing(tmp_path: Path) -> None:
    hits = dict.fromkeys(("fedavg", "fedcm"), np.arange(10) < 4)
    groups = write_hits(comparison(tmp_path, {"fedavg": 0.5, "fedcm": 0.6}, 1), hits)
    amend_summary(groups[0].runs[0].path, final_accuracy=0.9)
    assert "trained models" not in comparison_headline(load_runs([tmp_path]))[0]


def test_a_bootstrap_interval_is_that_of_the_mean_and_repeats() -> None:
    numbers = np.random.default_rng(1).choice([-1.0, 0.0, 1.0], 4000, p=[0.1, 0.7, 0.2])
    low, high = bootstrap_interval(numbers)
    reach = 1.96 * numbers.std() / 4000**0.5
    assert (low, high) == pytest.approx((numbers.mean() - reach, numbers.mean() + reach), abs=0.1 * reach)
    assert (low, high) == bootstrap_interval(numbers)
