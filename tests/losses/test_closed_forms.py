"""An objective that knows its own gradient knows the right one, and nobody inherits it for another loss."""

import pytest
import torch
from torch import Tensor

from fedwcm.core.loss import Loss, Outputs
from fedwcm.core.types import Context, State
from fedwcm.engine.batches import Batch
from fedwcm.losses import LOSSES
from fedwcm.losses.cross_entropy import CrossEntropy

from .builders import batch_of, context_of, logits_view, numbers, value

LABELS = [[0, 1, 2, 0], [2, 0, 1, 2]]
COUNTS = [[4, 2, 1], [1, 3, 4]]
PADDED = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("weight", [None, PADDED], ids=["full", "padded"])
def test_a_closed_form_is_what_autograd_finds(name: str, weight: Tensor | None) -> None:
    objective, ctx, batch = LOSSES[name](), context_of(COUNTS), batch_of(LABELS, weight)
    logits = (3.0 * numbers(2, 4, 3)).requires_grad_()
    known = objective.closed_form(logits_view(logits), batch, ctx)
    assert (known is None) == (name != "cross_entropy")
    if known is not None:
        losses, _ = value(objective, logits_view(logits), batch, ctx)
        torch.testing.assert_close(known[0], losses.detach(), rtol=1e-12, atol=1e-14)
        slope = torch.autograd.grad(losses.sum(), logits)[0]
        torch.testing.assert_close(known[1], slope, rtol=1e-12, atol=1e-14)


def test_the_closed_form_of_a_certain_model_is_finite() -> None:
    view = logits_view(torch.tensor([[[1e4, 0.0, -1e4]] * 4] * 2, dtype=torch.float64))
    loss, slope = CrossEntropy().closed_form(view, batch_of(LABELS), context_of(COUNTS))
    assert torch.isfinite(loss).all()
    assert torch.isfinite(slope).all()


class Doubled(CrossEntropy):
    """Another loss, and no word of its gradient."""

    def loss(self, view: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        losses, o = super().loss(view, batch, o, ctx)
        return 2.0 * losses, o


class Renamed(CrossEntropy):
    """The same loss."""


class OfDoubled(Doubled):
    """The same loss as another loss."""


@pytest.mark.parametrize(("kind", "knows"), [(Renamed, True), (Doubled, False), (OfDoubled, False)])
def test_a_closed_form_is_inherited_with_its_loss_and_not_without(kind: type[Loss], knows: bool) -> None:
    found = kind().closed_form(logits_view(numbers(2, 4, 3)), batch_of(LABELS), context_of(COUNTS))
    assert (found is not None) == knows
