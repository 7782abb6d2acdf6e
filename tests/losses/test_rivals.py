"""Published losses for skewed clients against their formulas, written here once more in NumPy."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedwcm.core.loss import Loss
from fedwcm.losses.balancefl import BalanceFL
from fedwcm.losses.fedlc import FedLC
from fedwcm.losses.fedntd import FedNTD
from fedwcm.losses.fedrs import FedRS
from fedwcm.losses.vs import VS
from tests.losses.builders import batch_of, context_of, numbers, value, view_of

Array = NDArray[np.float64]
COUNTS = np.array([[9, 3, 1], [2, 0, 8]])
LABELS = np.array([[0, 1, 2, 0], [2, 0, 0, 2]])


def cross_entropy(z: Array, y: NDArray[np.int64]) -> float:
    return float(np.mean([np.log(np.exp(row - row[label]).sum()) for row, label in zip(z, y, strict=True)]))


def fedlc(z: Array, n: Array) -> Array:
    return z - 0.5 * np.maximum(n, 1e-8) ** -0.25


def vs(z: Array, n: Array) -> Array:
    total = COUNTS.sum(axis=0)
    return z * (total / total.max()) ** 0.2 + 1.5 * np.log(total / total.sum())


def own_vs(z: Array, n: Array) -> Array:
    with np.errstate(divide="ignore"):
        return z * (n / n.max()) ** 0.2 + np.log(n / n.sum())


CASES = {
    "fedlc": (FedLC(tau=0.5), fedlc),
    "fedrs": (FedRS(alpha=0.4), lambda z, n: z * np.where(n > 0, 1.0, 0.4)),
    "fedrs, share": (FedRS(alpha=0.4, scale="share"), lambda z, n: z * (0.4 + 0.6 * n / n.max())),
    "vs": (VS(gamma=0.2, tau=1.5), vs),
    "vs, own counts": (VS(gamma=0.2, tau=1.0, prior="client"), own_vs),
}


def test_factors_undo_a_shift_and_are_not_known_of_scaled_logits() -> None:
    """What `--mix` turns a model's probabilities by: exp(-shift), 0 where the softmax leaves a class out."""
    ctx, total = context_of(COUNTS.tolist()), COUNTS.sum(axis=0)
    shifted = VS(gamma=0.0, tau=1.0).class_factors(ctx)
    assert shifted is not None
    np.testing.assert_allclose(shifted * total / shifted[0, 0] / total[0], 1.0)
    own = VS(gamma=0.0, tau=1.0, prior="client").class_factors(ctx)
    assert own is not None
    assert ((own > 0) == (COUNTS > 0)).all()
    assert VS(gamma=0.2, tau=0.0).class_factors(ctx) is None
    assert not VS(gamma=0.0, tau=0.0).corrects_prior
    np.testing.assert_array_equal(VS(gamma=0.0, tau=0.0).class_factors(ctx), [[1.0] * 3])
    np.testing.assert_array_equal(BalanceFL().class_factors(ctx), COUNTS > 0)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_mapped_as_the_paper_says(case: str) -> None:
    loss, mapped = CASES[case]
    outputs = view_of(numbers(2, 4, 5), 3)
    losses, _ = value(loss, outputs, batch_of(LABELS.tolist()), context_of(COUNTS.tolist()))
    z = outputs.logits.numpy()
    expected = [cross_entropy(mapped(z[k], COUNTS[k].astype(float)), LABELS[k]) for k in range(2)]
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-7)


def test_not_true_distillation_is_the_divergence_over_the_other_classes() -> None:
    outputs = view_of(numbers(2, 4, 5), 3)
    losses, _ = value(FedNTD(beta=0.7, tau=3.0), outputs, batch_of(LABELS.tolist()), context_of(COUNTS.tolist()))
    z, t = outputs.logits.numpy(), outputs.at(torch.zeros(3)).logits.numpy()
    for k in range(2):
        divergences = []
        for i, label in enumerate(LABELS[k]):
            others = [c for c in range(3) if c != label]
            p, q = (np.exp(logits[k, i, others] / 3.0) for logits in (t, z))
            p, q = p / p.sum(), q / q.sum()
            divergences.append(float((p * np.log(p / q)).sum()))
        expected = cross_entropy(z[k], LABELS[k]) + 0.7 * 9.0 * np.mean(divergences)
        assert float(losses[k]) == pytest.approx(expected)


def test_the_received_model_itself_has_nothing_to_distil() -> None:
    outputs = view_of(numbers(2, 4, 5), 3)
    same = outputs.at(torch.zeros(3))
    plain, both = (value(loss, same, batch_of(LABELS.tolist()), context_of(COUNTS.tolist()))[0] for loss in PAIR)
    torch.testing.assert_close(plain, both)


PAIR: tuple[Loss, Loss] = (FedNTD(beta=0.0), FedNTD(beta=3.0))
