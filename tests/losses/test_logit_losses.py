"""A loss that knows its own gradient knows the right one, and nobody inherits it for another loss."""

import pytest
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.loss import LogitLoss
from fedwcm.core.types import Context, State
from fedwcm.engine.oracle import differentiate
from fedwcm.losses import LOSSES
from fedwcm.losses.cross_entropy import CrossEntropy

from .builders import batch_of, context_of, logits_view, numbers, value

LABELS = [[0, 1, 2, 0], [2, 0, 1, 2]]
COUNTS = [[4, 2, 1], [1, 3, 4]]
PADDED = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
NAMES = [name for name in LOSSES if issubclass(LOSSES[name], LogitLoss)]


def test_the_losses_that_know_their_gradient() -> None:
    assert {"cross_entropy", "prior_ce"} <= set(NAMES)


@pytest.mark.parametrize("name", ["cross_entropy", "prior_ce"])
@pytest.mark.parametrize("weight", [None, PADDED], ids=["full", "padded"])
def test_the_gradient_is_the_slope_of_the_loss(name: str, weight: Tensor | None) -> None:
    loss, ctx, batch = LOSSES[name](), context_of(COUNTS), batch_of(LABELS, weight)
    assert isinstance(loss, LogitLoss)
    logits, step = 3.0 * numbers(2, 4, 3), 1e-6
    _, gradient = loss.with_gradient(logits, batch, ctx)
    for i in range(4):
        for j in range(3):
            nudge = torch.zeros_like(logits)
            nudge[:, i, j] = step
            above, _ = loss.with_gradient(logits + nudge, batch, ctx)
            below, _ = loss.with_gradient(logits - nudge, batch, ctx)
            torch.testing.assert_close(gradient[:, i, j], (above - below) / (2 * step), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["cross_entropy", "prior_ce"])
def test_calling_the_loss_gives_the_same_value_and_gradient_through_autograd(name: str) -> None:
    loss, ctx, batch = LOSSES[name](), context_of(COUNTS), batch_of(LABELS, PADDED)
    assert isinstance(loss, LogitLoss)
    logits = (3.0 * numbers(2, 4, 3)).requires_grad_()
    losses, _ = value(loss, logits_view(logits), batch, ctx)
    known, gradient = loss.with_gradient(logits.detach(), batch, ctx)
    torch.testing.assert_close(losses.detach(), known, rtol=1e-12, atol=1e-14)
    slope = torch.autograd.grad(losses.sum(), logits)[0]
    torch.testing.assert_close(slope, gradient, rtol=1e-12, atol=1e-14)


def test_the_gradient_of_a_certain_model_is_finite() -> None:
    logits = torch.tensor([[[1e4, 0.0, -1e4]] * 4] * 2, dtype=torch.float64)
    loss, gradient = CrossEntropy().with_gradient(logits, batch_of(LABELS), context_of(COUNTS))
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()


class Doubled(CrossEntropy):
    """Another loss, which says nothing of its gradient."""

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        losses, o = super().__call__(outputs, batch, o, ctx)
        return 2.0 * losses, o


class OfDoubled(Doubled):
    """The same loss as another loss."""


class Renamed(CrossEntropy):
    """Cross-entropy under another name."""


class Logits:
    """The parts of a forward pass that differentiation needs: the gradient ends at the logits."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def backward(self, values: Tensor, by_values: Tensor) -> Tensor:
        if values is self._logits:
            return by_values
        return torch.autograd.grad(values, self._logits, by_values)[0]


@pytest.mark.parametrize(("kind", "factor"), [(Renamed, 1.0), (Doubled, 2.0), (OfDoubled, 2.0)])
def test_a_subclass_that_changes_the_loss_does_not_inherit_the_gradient(
    kind: type[CrossEntropy], factor: float
) -> None:
    logits, batch, ctx = numbers(2, 4, 3).requires_grad_(), batch_of(LABELS), context_of(COUNTS)
    rate = torch.ones(2, 1, dtype=torch.float64)
    forward: object = Logits(logits)
    _, _, gradient = differentiate(kind(), forward, logits_view(logits), batch, {}, ctx, rate)  # type: ignore[arg-type]
    _, expected = CrossEntropy().with_gradient(logits.detach(), batch, ctx)
    torch.testing.assert_close(gradient, factor * expected)  # type: ignore[call-overload]
