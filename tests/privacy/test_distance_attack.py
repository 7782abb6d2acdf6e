"""The sum of exact distances gives every client's counts away; that of distances in levels leaves many open."""

import numpy as np

from fedwcm.core.disclosure import contributions
from fedwcm.privacy.options import PrivacyOptions

from .distance_attack import FEDERATIONS, attack, federations

HE = PrivacyOptions(mode="he").levels
THREE_CLIENTS = federations(3, 50, 150)
MANY = 50


def test_the_sum_of_exact_distances_determines_the_counts_of_most_small_federations() -> None:
    """The control: the attack does work where it can."""
    found = [attack(counts, None) for counts in THREE_CLIENTS]
    determined = [
        len(fits) == 1 and (fits[0] == own[:, 1]).all() for fits, own in zip(found, THREE_CLIENTS, strict=True)
    ]
    assert sum(determined) > 0.8 * FEDERATIONS


def test_the_sum_of_distances_in_levels_fits_many_counts() -> None:
    for counts in THREE_CLIENTS:
        fits = attack(counts, HE)
        assert counts[:, 1].tolist() in fits.tolist()
        assert len(fits) >= MANY


def test_a_client_of_few_samples_says_nothing_with_its_distance() -> None:
    every_split = np.column_stack([np.arange(10), 9 - np.arange(10)])
    assert len(np.unique(contributions(every_split, None, HE)[:, -1])) == 1
