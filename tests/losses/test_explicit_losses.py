"""A loss that knows its own gradient knows the right one, and nobody inherits it for another loss."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwcm.balance import prior_shift
from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.loss import ExplicitLoss
from fedwcm.core.types import Context, State
from fedwcm.engine.oracle import differentiate
from fedwcm.losses import LOSSES
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.losses.fedlc import FedLC
from fedwcm.losses.fedrs import FedRS
from fedwcm.losses.prior_ce import PriorCE
from fedwcm.losses.vs import VS

from .builders import batch_of, context_of, logits_view, numbers, slope, value, view_of

LABELS = [[0, 1, 2, 0], [2, 0, 1, 2]]
COUNTS = [[4, 2, 1], [1, 3, 4]]
PADDED = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
CASES: dict[str, ExplicitLoss] = {
    "cross_entropy": CrossEntropy(),
    "prior_ce": PriorCE(),
    "prior_ce, scaled": PriorCE(prior="global", tau=0.7, scale=3.0),
    "prior_ce, normalized": PriorCE(prior="global", normalize=True, scale=10.0),
    "prior_ce, normalized, own prior": PriorCE(normalize=True, scale=2.0, tau=1.5),
    "fedlc": FedLC(),
    "fedrs": FedRS(scale="share"),
    "vs": VS(),
}


def test_every_loss_that_knows_its_gradient_is_tried() -> None:
    explicit = [cls for cls in map(LOSSES.__getitem__, LOSSES) if cls.__call__ is ExplicitLoss.__call__]
    assert {cls.name for cls in explicit} == {case.name for case in CASES.values()}


def outputs_of(logits: Tensor, features: Tensor) -> Outputs:
    return Outputs(logits, features, lambda other: other, lambda x: outputs_of(logits, features))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weight", [None, PADDED], ids=["full", "padded"])
def test_the_gradients_are_the_slopes_of_the_loss(case: str, weight: Tensor | None) -> None:
    loss, ctx, batch = CASES[case], context_of(COUNTS, target=[0.2, 0.3, 0.5]), batch_of(LABELS, weight)
    variables = [3.0 * numbers(2, 4, 3), numbers(2, 4, 3, seed=1)]
    found = loss.with_gradient(outputs_of(variables[0], variables[1]), batch, ctx)
    slopes = [found.by_logits, torch.zeros(2, 4, 3).double() if found.by_features is None else found.by_features]
    step = 1e-6
    for which, gradient in enumerate(slopes):
        for i in range(4):
            for j in range(3):
                ends = []
                for sign in (step, -step):
                    moved = [variable.clone() for variable in variables]
                    moved[which][:, i, j] += sign
                    ends.append(loss.with_gradient(outputs_of(moved[0], moved[1]), batch, ctx).loss)
                torch.testing.assert_close(
                    gradient[:, i, j], (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-8
                )


@pytest.mark.parametrize("case", CASES)
def test_calling_the_loss_gives_the_same_value_and_gradient_through_autograd(case: str) -> None:
    loss, ctx, batch = CASES[case], context_of(COUNTS), batch_of(LABELS, PADDED)
    logits, features = (3.0 * numbers(2, 4, 3)).requires_grad_(), numbers(2, 4, 5, seed=1).requires_grad_()
    outputs = outputs_of(logits, features)
    losses, _ = value(loss, outputs, batch, ctx)
    found = loss.with_gradient(outputs, batch, ctx)
    assert not found.by_logits.requires_grad
    torch.testing.assert_close(losses.detach(), found.loss, rtol=1e-12, atol=1e-14)
    for variable, known in found.by_outputs(outputs):
        through = torch.autograd.grad(losses.sum(), variable, retain_graph=True)[0]
        torch.testing.assert_close(through, known, rtol=1e-12, atol=1e-14)


def test_the_gradient_of_a_certain_model_is_finite() -> None:
    logits = torch.tensor([[[1e4, 0.0, -1e4]] * 4] * 2, dtype=torch.float64)
    found = CrossEntropy().with_gradient(logits_view(logits), batch_of(LABELS), context_of(COUNTS))
    assert torch.isfinite(found.loss).all()
    assert torch.isfinite(found.by_logits).all()


LAWS: dict[str, tuple[PriorCE, list[list[int]], list[float] | None]] = {
    "tau = 0": (PriorCE(prior="global", tau=0.0), COUNTS, None),
    "a uniform distribution": (PriorCE(prior="global"), [[1, 2, 3], [3, 2, 1]], None),
    "a distribution equal to the target": (PriorCE(prior="global"), [[2, 1, 1], [2, 1, 1]], [0.5, 0.25, 0.25]),
}


@pytest.mark.parametrize("law", LAWS)
def test_prior_ce_is_cross_entropy_for(law: str) -> None:
    loss, counts, target = LAWS[law]
    logits, batch, ctx = numbers(2, 4, 3), batch_of(LABELS), context_of(counts, target=target)
    mine, plain = (each.with_gradient(logits_view(logits), batch, ctx) for each in (loss, CrossEntropy()))
    torch.testing.assert_close(mine.loss, plain.loss, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(mine.by_logits, plain.by_logits, rtol=1e-7, atol=1e-7)


def test_the_normalized_loss_is_that_of_the_formula() -> None:
    features, ctx = numbers(2, 4, 5), context_of(COUNTS, target=[0.2, 0.3, 0.5])
    losses, _ = slope(
        PriorCE(prior="global", normalize=True, scale=10.0), features, torch.tensor(LABELS), None, ctx
    )
    totals = np.array(COUNTS).sum(axis=0)
    shift = torch.from_numpy(np.log(totals / totals.sum()) - np.log([0.2, 0.3, 0.5]))
    length = torch.sqrt(1.0 + features.square().sum(dim=-1, keepdim=True))
    u = 10.0 * view_of(features, 3).logits / length + shift
    expected = torch.nn.functional.cross_entropy(u.mT, torch.tensor(LABELS), reduction="none").mean(dim=1)
    torch.testing.assert_close(losses, expected, rtol=1e-7, atol=1e-8)


def test_a_class_that_nobody_has_is_finite_and_pushed_down() -> None:
    ctx = context_of([[4, 2, 0], [1, 3, 0]])
    found = PriorCE(prior="global").with_gradient(
        logits_view(numbers(2, 4, 3)), batch_of([[0, 1, 1, 0], [1, 0, 1, 1]]), ctx
    )
    assert torch.isfinite(found.loss).all()
    assert (found.by_logits[..., 2] > 1e-4).all()
    shift = prior_shift([[5, 5, 0]], [0.5, 0.5, 0.0])
    assert np.isfinite(shift).all()
    assert shift[0, 2] > 0  # neither gathered nor expected: rather too rare than too frequent


def test_normalizing_needs_features() -> None:
    logits = numbers(2, 4, 3)
    with pytest.raises(ValueError, match="normalize = true needs a model with a final linear layer"):
        PriorCE(normalize=True).with_gradient(
            outputs_of(logits, torch.zeros(0)), batch_of(LABELS), context_of(COUNTS)
        )


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

    def backward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        values, by_values = pair
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
    expected = CrossEntropy().with_gradient(logits_view(logits), batch, ctx).by_logits
    torch.testing.assert_close(gradient, factor * expected)
