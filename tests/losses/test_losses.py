"""Laws of the losses for long tails, of the balanced sampler, and of the recipes that are made of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedwcm.config.recipes import RECIPES
from fedwcm.config.settings import from_settings, method_settings
from fedwcm.core.loss import Loss
from fedwcm.engine.evaluate import evaluate
from fedwcm.experiment.build import build
from fedwcm.losses import LOSSES
from fedwcm.losses.balancefl import BalanceFL
from fedwcm.losses.class_weights import ClassWeights, balancing_weights
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.losses.fedlc import FedLC
from fedwcm.losses.fedntd import FedNTD
from fedwcm.losses.fedrs import FedRS
from fedwcm.losses.focal import Focal
from fedwcm.losses.grab import GraB
from fedwcm.losses.ldam import LDAM, margins
from fedwcm.losses.prior_ce import PriorCE
from fedwcm.losses.rucr import RUCRLoss
from fedwcm.losses.vs import VS
from fedwcm.methods.fedavg import FedAvg
from fedwcm.samplers import SAMPLERS
from fedwcm.samplers.balanced import Balanced
from tests.factories import clusters, headless, make_rounds, make_trainer, run_rounds
from tests.losses.builders import batch_of, context_of, logits_view, numbers, slope, value, view_of

EVEN = [[4, 4, 4], [6, 6, 6]]
TAIL = [[9, 3, 1], [2, 0, 8]]
LABELS = torch.tensor([[0, 1, 2, 0], [2, 0, 0, 2]])

VARIANTS: dict[str, Loss] = {
    "focal": Focal(),
    "ldam": LDAM(),
    "ldam, re-weighted from the start": LDAM(drw=0.0, prior="global"),
    "prior_ce": PriorCE(),
    "prior_ce, global": PriorCE(prior="global"),
    "class_weights": ClassWeights(),
    "class_weights, effective and global": ClassWeights(scheme="effective", prior="global"),
    "balancefl": BalanceFL(draws=10),
    "grab": GraB(),
    "fedlc": FedLC(),
    "fedrs": FedRS(),
    "fedrs, by share": FedRS(scale="share"),
    "fedntd": FedNTD(),
    "vs": VS(),
    "vs, client": VS(prior="client"),
}

NEUTRAL: dict[str, tuple[Loss, list[list[int]]]] = {
    "focal, gamma 0": (Focal(gamma=0.0), TAIL),
    "prior_ce on even counts": (PriorCE(), EVEN),
    "prior_ce on an even federation": (PriorCE(prior="global"), [[1, 2, 3], [3, 2, 1]]),
    "ldam, margin 0 and scale 1": (LDAM(max_margin=0.0, scale=1.0, drw=1.0, normalize=False), TAIL),
    "inverse weights on even counts": (ClassWeights(), EVEN),
    "effective weights on even counts": (ClassWeights(scheme="effective"), EVEN),
    "effective weights with beta 0": (ClassWeights(scheme="effective", beta=0.0), [[9, 3, 1], [2, 1, 8]]),
    "fedlc, tau 0": (FedLC(tau=0.0), TAIL),
    "fedlc on even counts": (FedLC(), EVEN),
    "fedrs, alpha 1": (FedRS(alpha=1.0), TAIL),
    "fedrs of clients with all classes": (FedRS(), EVEN),
    "fedntd, beta 0": (FedNTD(beta=0.0), TAIL),
    "vs, gamma and tau 0": (VS(gamma=0.0, tau=0.0), TAIL),
    "vs on even counts": (VS(prior="client"), EVEN),
    "balancefl without its terms on a batch of all classes": (BalanceFL(lambda_=0, entropy=0, draws=0), TAIL),
}


def test_losses_and_the_sampler_are_found_by_name() -> None:
    for loss in VARIANTS.values():
        assert LOSSES[loss.name] is type(loss)
    assert SAMPLERS["balanced"] is Balanced


@pytest.mark.parametrize(("loss", "counts"), NEUTRAL.values(), ids=NEUTRAL.keys())
def test_neutral_options_give_cross_entropy(loss: Loss, counts: list[list[int]]) -> None:
    features, ctx = numbers(2, 4, 5), context_of(counts)
    labels = torch.tensor([[0, 1, 2, 0], [2, 0, 1, 2]])
    plain, plain_slope = slope(CrossEntropy(), features, labels, None, ctx)
    losses, own_slope = slope(loss, features, labels, None, ctx)
    torch.testing.assert_close(losses, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own_slope, plain_slope, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", VARIANTS.values(), ids=VARIANTS.keys())
def test_default_options_do_not_give_cross_entropy(loss: Loss) -> None:
    features, ctx = numbers(2, 4, 5), context_of(TAIL)
    _, plain = slope(CrossEntropy(), features, LABELS, None, ctx)
    _, own = slope(loss, features, LABELS, None, ctx)
    assert not torch.allclose(own, plain, rtol=1e-3)


@pytest.mark.parametrize("loss", VARIANTS.values(), ids=VARIANTS.keys())
def test_padding_changes_nothing(loss: Loss) -> None:
    features, ctx = numbers(2, 4, 5), context_of(TAIL)
    labels = torch.tensor([[0, 1, 0, 0], [2, 0, 0, 2]])
    padding = 1e3 * numbers(2, 3, 5, seed=9)
    absent = torch.tensor([[2, 2, 1], [1, 1, 1]])
    weight = torch.tensor([[1.0] * 4 + [0.0] * 3] * 2, dtype=torch.float64)
    losses, own = slope(loss, features, labels, None, ctx)
    padded_losses, padded = slope(
        loss, torch.cat([features, padding], dim=1), torch.cat([labels, absent], dim=1), weight, ctx
    )
    torch.testing.assert_close(padded_losses, losses)
    torch.testing.assert_close(padded[:, :4], own)
    assert not padded[:, 4:].any()


@pytest.mark.parametrize("loss", VARIANTS.values(), ids=VARIANTS.keys())
def test_padding_leaves_the_clients_state_alone(loss: Loss) -> None:
    features, ctx = numbers(1, 3, 5), context_of([[4, 2, 1]])
    labels = torch.tensor([[0, 1, 0]])
    prepared = {"noise": numbers(1, 10, 5, seed=3), "chance": torch.zeros(1, 10, dtype=torch.float64)}
    ctx = replace(ctx, prepared=prepared)
    _, state = value(loss, view_of(features, 3), batch_of(labels), ctx)
    wide = view_of(torch.cat([features, numbers(1, 2, 5, seed=4)], dim=1), 3)
    weight = torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    _, padded = value(loss, wide, batch_of([[0, 1, 0, 2, 2]], weight), ctx)
    assert state.keys() == padded.keys()
    for key in state:
        torch.testing.assert_close(padded[key], state[key])


def test_focal_loss_of_one_sample() -> None:
    p = 0.8
    logits = torch.tensor([[[math.log(p), math.log(1 - p)]]], dtype=torch.float64)
    losses, _ = value(Focal(gamma=2.0), logits_view(logits), batch_of([[0]]), context_of([[1, 1]]))
    assert float(losses) == pytest.approx((1 - p) ** 2 * -math.log(p), rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_slope_is_finite_where_the_model_is_certain(gamma: float) -> None:
    logits = torch.tensor([[[300.0, 0.0]]], requires_grad=True)
    losses, _ = value(Focal(gamma=gamma), logits_view(logits), batch_of([[0]]), context_of([[1, 1]]))
    (own,) = torch.autograd.grad(losses.sum(), logits)
    assert torch.equal(own, torch.zeros_like(own))


@pytest.mark.parametrize("prior", ["client", "global"])
def test_prior_ce_slope_is_that_of_its_definition(prior: str) -> None:
    ctx = context_of(TAIL)
    logits = numbers(2, 4, 3).requires_grad_()
    losses, _ = value(PriorCE(prior=prior), logits_view(logits), batch_of(LABELS), ctx)  # type: ignore[arg-type]
    (own,) = torch.autograd.grad(losses.sum(), logits)
    for k in range(2):
        counts = np.array(TAIL)[k] if prior == "client" else np.array(TAIL).sum(axis=0)
        share = torch.from_numpy(counts / counts.sum()) + 1e-9
        odds = share * logits[k].detach().exp()
        expected = odds / odds.sum(dim=1, keepdim=True)
        likelihood = expected[range(4), LABELS[k]]
        assert losses[k].item() == pytest.approx(float(-likelihood.log().mean()), rel=1e-9)
        expected[range(4), LABELS[k]] -= 1
        torch.testing.assert_close(own[k], expected / 4)


def test_prior_ce_leaves_classes_alone_that_the_client_does_not_have() -> None:
    logits = numbers(1, 4, 3).requires_grad_()
    losses, _ = value(PriorCE(), logits_view(logits), batch_of([[0, 2, 0, 2]]), context_of([[2, 0, 2]]))
    (own,) = torch.autograd.grad(losses.sum(), logits)
    assert float(own[..., 1].abs().max()) < 1e-7 < float(own[..., 0].abs().min())


def test_inverse_weights_by_hand() -> None:
    weights = balancing_weights(np.array([[1.0, 2.0, 4.0], [2.0, 0.0, 2.0]]), "inverse", 0.0)
    np.testing.assert_allclose(weights, [[12 / 7, 6 / 7, 3 / 7], [1.0, 1.0, 1.0]])


def test_a_class_that_noise_hides_from_the_counts_weighs_as_much_as_the_rarest() -> None:
    (weights,) = balancing_weights(np.array([[1090.0, 115.0, 0.0]]), "inverse", 0.0)
    assert weights[2] == weights[1] > weights[0] > 0


def test_effective_weights_by_hand_and_in_their_limits() -> None:
    counts = np.array([[1.0, 2.0, 0.0]])
    halves = balancing_weights(counts, "effective", 0.5)
    np.testing.assert_allclose(halves, [[2 / (5 / 3), (4 / 3) / (5 / 3), 2 / (5 / 3)]])
    np.testing.assert_allclose(balancing_weights(counts, "effective", 0.0), [[1, 1, 1]])
    inverse = balancing_weights(counts, "inverse", 0.0)
    np.testing.assert_allclose(balancing_weights(counts, "effective", 1 - 1e-9), inverse, rtol=1e-6)


def test_weighted_loss_is_the_mean_of_weighted_samples() -> None:
    logits, ctx = numbers(1, 3, 2), context_of([[3, 1]])
    losses, _ = value(ClassWeights(), logits_view(logits), batch_of([[0, 1, 1]]), ctx)
    surprise = -logits.log_softmax(dim=-1)[0, range(3), [0, 1, 1]]
    assert float(losses) == pytest.approx(float((surprise * torch.tensor([0.5, 1.5, 1.5])).mean()), rel=1e-12)


def test_global_weights_are_made_of_the_samples_of_all_clients() -> None:
    """The effective number needs the counts themselves: shares would not do."""
    loss = ClassWeights(scheme="effective", prior="global", beta=0.5)
    logits = torch.zeros(2, 1, 2, dtype=torch.float64)
    losses, _ = value(loss, logits_view(logits), batch_of([[0], [1]]), context_of([[1, 1], [1, 0]]))
    weights = balancing_weights(np.array([[2.0, 1.0]]), "effective", 0.5)[0]
    np.testing.assert_allclose(losses.numpy(), weights * math.log(2))


def test_margins_fall_with_the_fourth_root_and_an_absent_class_counts_as_one_sample() -> None:
    np.testing.assert_allclose(margins(np.array([[1.0, 16.0, 0.0], [81.0, 16.0, 16.0]]), 0.5)[0], [0.5, 0.25, 0.5])
    np.testing.assert_allclose(margins(np.array([[81.0, 16.0]]), 0.3), [[0.2, 0.3]])


def test_ldam_of_one_sample() -> None:
    logits, ctx = torch.tensor([[[0.3, 0.1]]], dtype=torch.float64), context_of([[16, 1]])
    loss = LDAM(scale=10.0, normalize=False)
    losses, _ = value(loss, logits_view(logits), batch_of([[0]]), ctx)
    expected = -math.log(1 / (1 + math.exp(10 * (0.1 - (0.3 - 0.25)))))
    assert float(losses) == pytest.approx(expected, rel=1e-12)


def test_ldam_weighs_classes_only_after_the_share_of_the_rounds() -> None:
    features = numbers(1, 2, 5)
    labels = torch.tensor([[0, 1]])
    late, never = LDAM(drw=0.8), LDAM(drw=1.0)
    for round_, differs in ((0, False), (7, False), (8, True), (9, True)):
        ctx = context_of([[16, 1]], round_=round_, rounds=10)
        pair = [slope(loss, features, labels, None, ctx)[0] for loss in (late, never)]
        assert torch.equal(*pair) != differs


def test_a_share_of_the_rounds_is_not_one_round_late_by_rounding() -> None:
    weighted, never = (
        slope(LDAM(drw=drw), numbers(1, 2, 5), torch.tensor([[0, 1]]), None, context_of([[16, 1]], 55, 100))[0]
        for drw in (0.55, 1.0)
    )
    assert not torch.equal(weighted, never)


def test_ldam_divides_by_what_the_classes_share() -> None:
    """The class that costs least is the one that the plain model picks; long features cost no more."""
    ctx, loss = context_of([[5, 5, 5]]), LDAM(max_margin=0.0, drw=1.0)
    for length in (1.0, 1e6):
        features = length * numbers(20, 1, 5)
        outputs = view_of(features, 3)
        costs = torch.stack([value(loss, outputs, batch_of([[c]] * 20), ctx)[0] for c in range(3)], dim=1)
        assert torch.equal(costs.argmin(dim=1), outputs.logits[:, 0].argmax(dim=1))
        assert float(costs.max()) < 1e3
    nothing = value(loss, view_of(0.0 * numbers(20, 1, 5), 3), batch_of([[0]] * 20), ctx)[0]
    assert torch.isfinite(nothing).all()


@pytest.mark.parametrize("loss", [LDAM(), BalanceFL()], ids=["ldam", "balancefl"])
def test_losses_on_features_refuse_a_model_without_a_linear_head(loss: Loss) -> None:
    data = clusters(shape=(1, 4, 4))
    training = make_trainer(FedAvg(), data.federation, headless(), loss=loss)
    with pytest.raises(ValueError, match="final linear layer"):
        run_rounds(make_rounds(training, data.federation), 1)


@pytest.mark.parametrize(
    ("cls", "field", "bad"),
    [
        (Focal, "gamma", -1.0),
        (LDAM, "max_margin", -0.1),
        (LDAM, "scale", 0.0),
        (LDAM, "drw", 1.5),
        (LDAM, "beta", 1.0),
        (ClassWeights, "beta", 1.0),
        (BalanceFL, "temperature", 0.0),
        (BalanceFL, "draws", -1),
        (GraB, "kp", -1.0),
        (PriorCE, "prior", "Client"),
        (ClassWeights, "scheme", "effectiv"),
        (LDAM, "prior", "all"),
        (RUCRLoss, "temperature", 0.0),
        (RUCRLoss, "contrast", -0.1),
    ],
)
def test_bad_option_is_named(cls: type[Loss], field: str, bad: object) -> None:
    with pytest.raises(ValueError, match=f"{field} = {bad!r}"):
        cls(**{field: bad})


def test_balanced_sampler_draws_classes_evenly_and_samples_of_a_class_evenly() -> None:
    labels = np.repeat([0, 2, 3], [60, 30, 10])
    rng = np.random.default_rng(0)
    drawn = np.concatenate([Balanced().epoch(labels, rng) for _ in range(600)])
    per_class = np.bincount(labels[drawn], minlength=4)
    np.testing.assert_allclose(per_class[[0, 2, 3]], 20_000, atol=5 * math.sqrt(60_000 * 2 / 9))
    assert per_class[1] == 0
    times = np.bincount(drawn, minlength=100)
    expected = 20_000 / np.bincount(labels)[labels]
    assert float(((times - expected) ** 2 / expected).sum()) < 100 + 6 * math.sqrt(200)


def test_a_capped_sampler_lies_between_plain_and_balanced() -> None:
    labels, rng = np.repeat([0, 1, 2], [80, 18, 2]), np.random.default_rng(0)
    for cap, shares in ((1.0, (0.8, 0.18, 0.02)), (5.0, (0.68, 0.22, 0.1)), (100.0, (1 / 3, 1 / 3, 1 / 3))):
        drawn = np.concatenate([Balanced(cap=cap).epoch(labels, rng) for _ in range(2000)])
        draws = np.bincount(drawn, minlength=len(labels)) / 2000
        assert draws.max() < cap * 1.1 + 0.1
        np.testing.assert_allclose(np.bincount(labels[drawn]) / len(drawn), shares, atol=0.01)
    with pytest.raises(ValueError, match=r"cap = 0\.5 is not allowed"):
        Balanced(cap=0.5)


def test_balanced_sampler_keeps_the_length_of_an_epoch() -> None:
    labels = np.array([5, 5, 5, 1])
    order = Balanced().epoch(labels, np.random.default_rng(1))
    assert len(order) == 4
    assert set(order) <= set(range(4))
    assert np.array_equal(order, Balanced().epoch(labels, np.random.default_rng(1)))


COMPOSED = [
    "fedcm+focal",
    "fedcm+balance-loss",
    "fedcm+balance-sampler",
    "fedwcm+longtail",
    "fedwcm+prior_ce",
    "fedavg+prior_ce",
    "balancefl",
    "fedgrab",
]


@pytest.mark.parametrize("recipe", COMPOSED)
def test_recipe_learns_digits(recipe: str) -> None:
    assert recipe in RECIPES
    experiment = build(from_settings({**method_settings(recipe), "run.rounds": 20}))
    state = run_rounds(experiment.rounds, 20)[-1][0]
    samples = experiment.test
    tested = evaluate(experiment.network, state.x, state.buffers, samples.inputs, samples.labels, 10)
    assert np.trace(tested.confusion) / tested.confusion.sum() > 0.5
