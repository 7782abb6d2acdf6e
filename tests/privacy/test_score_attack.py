"""A score in full precision gives a client's scarce counts away; one in few levels leaves many possibilities."""

import itertools
from typing import Any

import numpy as np
import pytest

from fedwcm.core.disclosure import Disclosure
from fedwcm.methods.fedwcm import FedWCM
from fedwcm.privacy.options import PrivacyOptions

from .score_attack import CLIENTS, attack, long_tailed_counts, population_of, possibilities_after, reported

OPEN = Disclosure(None)
FEWEST = 5
"""What docs/privacy-scores.md promises."""
HE = Disclosure(PrivacyOptions(mode="he").levels)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_an_open_score_determines_the_scarce_counts(classes: int) -> None:
    """The control: the attack does work where it can."""
    counts = long_tailed_counts(classes)
    scarce = population_of(counts).prior < 1 / classes
    found = attack(counts, OPEN)
    determined = [
        len(fits) == 1 and (fits[0] == own[scarce]).all() for fits, own in zip(found, counts, strict=True)
    ]
    assert all(determined)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_a_score_in_levels_fits_several_counts_of_the_scarcest_class(classes: int) -> None:
    for fits in attack(long_tailed_counts(classes), HE):
        scarcest = fits[:, -1]
        assert len(np.unique(scarcest)) >= FEWEST


@pytest.mark.parametrize("score", ["scarcity", "absolute"])
def test_every_level_fits_five_counts_of_the_scarcest_class_from_four_samples_on(score: Any) -> None:
    population = population_of(long_tailed_counts(3))
    for samples in (4, 7, 9, 10, 14, 23, 41):
        spread = itertools.product(range(samples + 1), repeat=2)
        table = np.array([[samples - a - b, a, b] for a, b in spread if a + b <= samples])
        scores_of_all = HE.report(FedWCM(score=score), np.arange(len(table)), table, population)["score"].round(9)
        assert all(
            len(np.unique(table[scores_of_all == level, -1])) >= FEWEST for level in np.unique(scores_of_all)
        )
        assert len(np.unique(scores_of_all)) == 1 or samples >= 10


def test_levels_under_distributions_that_the_server_chooses_leave_few_counts() -> None:
    """Why a client answers for one class distribution in a run."""
    alone, chosen = possibilities_after(1), possibilities_after(5)
    assert min(alone) >= 5
    assert np.median(chosen) <= np.median(alone) / 5


def test_exact_sums_over_known_cohorts_would_give_every_score_away() -> None:
    """Why scores are not summed exactly in each round, under whatever encryption: a few rounds solve for them."""
    counts = long_tailed_counts(3)
    population, rng = population_of(counts), np.random.default_rng(0)
    took_part = np.array([rng.permutation(CLIENTS) < 8 for _ in range(3 * CLIENTS)], dtype=float)
    exact, in_levels = reported(counts, population, OPEN), reported(counts, population, HE)
    solved = np.linalg.lstsq(took_part, took_part @ exact, rcond=None)[0]
    np.testing.assert_allclose(solved, exact, atol=1e-9)
    assert len(np.unique(in_levels.round(9))) < len(np.unique(exact.round(9))) / 2
