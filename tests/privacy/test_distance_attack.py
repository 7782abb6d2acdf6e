"""The sum of exact distances gives every client's counts away; that of distances in levels leaves many open."""

import numpy as np
import pytest

from fedwcm.balance import local_deviations
from fedwcm.core.disclosure import UNIT, contributions
from fedwcm.privacy.options import PrivacyOptions

from .distance_attack import FEDERATIONS, attack, federations

HE = PrivacyOptions(mode="he").levels
THREE_CLIENTS = federations(3, 50, 150)


def test_the_sum_of_exact_distances_determines_the_counts_of_most_small_federations() -> None:
    """The control: the attack does work where it can."""
    found = [attack(counts, None) for counts in THREE_CLIENTS]
    determined = [
        len(fits) == 1 and (fits[0] == own[:, 1]).all() for fits, own in zip(found, THREE_CLIENTS, strict=True)
    ]
    assert (sum(determined), FEDERATIONS) == (36, 40), "as docs/privacy-scores.md says"


def test_the_sum_of_distances_in_levels_fits_many_counts() -> None:
    found = [attack(counts, HE) for counts in THREE_CLIENTS]
    for counts, fits in zip(THREE_CLIENTS, found, strict=True):
        assert counts[:, 1].tolist() in fits.tolist()
    left = [len(fits) for fits in found]
    assert (min(left), round(np.median(left))) == (58, 434), "as docs/privacy-scores.md says"


def test_no_distance_is_beyond_the_range_that_levels_divide() -> None:
    target = np.array([0.2, 0.5, 0.3])
    one_class = local_deviations(100 * np.eye(3, dtype=np.int64), target)
    assert one_class.max() == pytest.approx(2 * (1 - target.min()))
    exact, told = (contributions(100 * np.eye(3, dtype=np.int64), target, k)[:, -1] for k in (None, 8))
    assert (np.abs(exact - told) <= UNIT**-1 * one_class.max() / 16 + 1).all(), "half a level"


def test_a_client_of_few_samples_says_nothing_with_its_distance() -> None:
    every_split = np.column_stack([np.arange(10), 9 - np.arange(10)])
    assert len(np.unique(contributions(every_split, None, HE)[:, -1])) == 1
