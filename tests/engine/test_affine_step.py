"""A step along an affine direction, with everything multiplied out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.core.types import Vec
from fedwcm.engine.fast.affine_step import AffineDirection, AffineStep, BlockDirection
from fedwcm.engine.forward import DenseGradient

K, P = 3, 7
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-14}


def numbers(*shape: int, seed: int) -> Vec:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


SHARED, EACH, PULL = numbers(P, seed=1), numbers(K, P, seed=5), numbers(K, 1, seed=2)

DIRECTIONS = {
    "gradient": AffineDirection(),
    "scaled": AffineDirection(0.3),
    "scaled per client": AffineDirection(numbers(K, 1, seed=6)),
    "shifted": AffineDirection(terms=((0.5, SHARED),)),
    "each shifted": AffineDirection(0.3, terms=((1.0, EACH),)),
    "two terms": AffineDirection(terms=((2.0, SHARED), (-1.0, EACH))),
    "terms per client": AffineDirection(terms=((PULL, EACH), (-PULL, SHARED))),
    "pulled": AffineDirection(pull=0.2),
    "all of it": AffineDirection(0.3, PULL, ((2.0, SHARED), (-1.0, EACH))),
}


def by_hand(direction: AffineDirection, g: Vec, w: Vec) -> Vec:
    v = direction.scale * g + direction.pull * w
    for coefficient, vector in direction.terms:
        v = v + coefficient * vector
    return v


@pytest.mark.parametrize("direction", DIRECTIONS.values(), ids=DIRECTIONS)
@pytest.mark.parametrize("decay", [0.0, 0.7])
@pytest.mark.parametrize("rates", [[0.1, 0.1, 0.1], [0.1, 0.2, 0.05]], ids=["one rate", "three rates"])
@pytest.mark.parametrize("active", [K, 2])
def test_a_step_goes_along_its_direction(
    direction: AffineDirection, decay: float, rates: list[float], active: int
) -> None:
    w, g = numbers(K, P, seed=3), numbers(K, P, seed=4)
    lr = torch.tensor(rates, dtype=torch.float64)[:, None]
    v = by_hand(direction, g, w)[:active]
    torch.testing.assert_close(BlockDirection.of(direction)(g[:active].clone(), w[:active]), v, **EXACT)
    common = rates[0] if len(set(rates)) == 1 else None
    step, moved = AffineStep.along(direction, lr, common, decay).first(active), w[:active].clone()
    step(moved, DenseGradient(g[:active] * step.rate))
    torch.testing.assert_close(moved, w[:active] - lr[:active] * (v + decay * w[:active]), **EXACT)


def test_terms_that_all_share_stay_one_vector_if_their_rates_are_the_same() -> None:
    direction = DIRECTIONS["shifted"]
    same, different = (torch.tensor(rates)[:, None] for rates in ([0.1, 0.1], [0.1, 0.2]))
    shared = AffineStep.along(direction, same, 0.1, 0.0).offset
    own = AffineStep.along(direction, different, None, 0.0).offset
    assert shared is not None
    assert own is not None
    assert (shared.shape, own.shape) == ((P,), (2, P))


def test_summing_terms_leaves_their_vectors_alone() -> None:
    before = SHARED.clone(), EACH.clone()
    replace(DIRECTIONS["two terms"]).shift(2.0)
    assert torch.equal(SHARED, before[0])
    assert torch.equal(EACH, before[1])
