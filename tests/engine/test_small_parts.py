"""Small parts of the engine, each by its own words."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedwcm.core.types import Report
from fedwcm.engine.backends.errors import is_out_of_memory
from fedwcm.engine.fast.products import _stack
from fedwcm.engine.hook_checks import ComponentError, check_ids
from fedwcm.engine.options import Aggregation, balanced_cohort
from fedwcm.engine.uploads import BoundedUploads, CohortUpdates, UploadRows, merge_updates
from fedwcm.methods.fedncm import FedNCM


def test_out_of_memory_is_told_by_its_type_or_its_words() -> None:
    errors = (MemoryError(), RuntimeError("DefaultCPUAllocator: not enough"), RuntimeError("CUDA out of memory"))
    assert all(map(is_out_of_memory, errors))
    assert not is_out_of_memory(RuntimeError("shapes differ"))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_products_of_all_models_are_stacked(count: int) -> None:
    products = [torch.full((2, 2), float(k)) for k in range(count)]
    assert _stack(products)[:, 0, 0].tolist() == list(range(count))


def test_ids_of_a_round_are_whole_numbers_in_a_row() -> None:
    assert check_ids(min, [3, 1], 4).tolist() == [1, 3]
    for wrong in ([0.5, 1.0], [[0, 1], [2, 3]], [1, 1], [], [4], [-1]):
        with pytest.raises(ComponentError, match="it must return different ids from 0 to 3"):
            check_ids(min, wrong, 4)


def test_buffers_that_are_bounded_move_less_from_where_they_were() -> None:
    sent = UploadRows({"buffers": torch.tensor([[1.0, 3.0], [1.0, 11.0], [1.0, 3.0]])})
    bounded = BoundedUploads(sent, np.ones(3), Aggregation(norm_ratio=2.0), torch.tensor([1.0, 1.0]))
    assert bounded.rows("buffers").tolist() == [[1.0, 3.0], [1.0, 5.0], [1.0, 3.0]]


def test_a_balanced_cohort_evens_shares_and_not_counts() -> None:
    counts = np.array([[30, 0], [0, 1], [0, 30]])
    cohorts = {tuple(balanced_cohort(counts, 2, np.random.default_rng(seed)).tolist()) for seed in range(20)}
    assert cohorts == {(0, 1), (0, 2)}  # beside client 2, client 1 would leave one class alone


def test_answers_of_groups_are_joined_by_id_and_an_empty_group_is_left_out() -> None:
    def answers(*ids: int) -> CohortUpdates:
        values = np.array(ids, dtype=np.float64)
        rows = {"delta": torch.tensor(values)[:, None]} if ids else {}
        report: Report = {"score": values} if ids else {}
        return CohortUpdates(np.array(ids, dtype=np.int64), UploadRows(rows), report, values, values, values, {})

    both = merge_updates([answers(), answers(5, 7), answers(6)])
    assert both.ids.tolist() == [5, 6, 7]
    assert both.uploads.rows("delta").tolist() == [[5.0], [6.0], [7.0]]
    assert both.report["score"].tolist() == both.loss.tolist() == [5.0, 6.0, 7.0]


class Pair(SimpleNamespace):
    """A cohort of two clients, in the second of ten rounds."""

    def __len__(self) -> int:
        return 2


def test_sums_of_earlier_rounds_stay_with_their_share() -> None:
    method, cohort = FedNCM(memory=0.25), cast(Any, Pair(round=1, population=SimpleNamespace(rounds=10)))
    uploads: Any = UploadRows({key: torch.ones(2, 3) for key in method.sum_keys})
    once = method.after_probe({"other": torch.zeros(1)}, uploads, cohort)
    twice = method.after_probe(once, uploads, cohort)
    sums = [{tuple(value.tolist()) for key, value in state.items() if key != "other"} for state in (once, twice)]
    assert sums == [{(2.0, 2.0, 2.0)}, {(2.5, 2.5, 2.5)}]
