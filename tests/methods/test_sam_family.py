"""Sharpness-aware methods: where they take their gradients, what they reduce to, and what they must not touch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwcm.balance import adaptive_alpha, client_weights, local_deviations, temperature
from fedwcm.core.method import Method
from fedwcm.core.perturbation import perturbation
from fedwcm.core.types import Clients, Cohort, Context, GradientOracle, Ints, Report, State, Vec
from fedwcm.engine.network import Network
from fedwcm.engine.uploads import UploadRows
from fedwcm.methods import METHODS
from fedwcm.methods.fedcm import FedCM
from fedwcm.methods.fedlesam import FedLESAM
from fedwcm.methods.fedsam import FedSAM
from fedwcm.methods.fedsmoo import FedSMOO
from fedwcm.methods.fedwcm import WCM, FedWCM
from fedwcm.methods.fedwmsam import FedWMSAM
from fedwcm.methods.mofedsam import MoFedSAM
from fedwcm.methods.scaffold import SCAFFOLD

from ..factories import SIZES, Scripted, clusters, linear, make_rounds, make_trainer, mlp, population, run_rounds
from ..specimens import the_long_way

Case = tuple[str, dict[str, Any]]
"""A method of the family, and options that are not its defaults."""

PARENTS = {
    "fedsam": "fedavg",
    "mofedsam": "fedcm",
    "fedgamma": "scaffold",
    "fedspeed": "feddyn",
    "fedsmoo": "feddyn",
    "fedlesam": "fedavg",
    "fedlesam-s": "scaffold",
    "fedlesam-d": "feddyn",
}
CHILDREN: list[Case] = [(name, {}) for name in PARENTS] + [
    (name, {"memory": "server"}) for name in PARENTS if name.startswith("fedlesam")
]
FAMILY = [*CHILDREN, ("fedwmsam", {})]
COHORTS = ((0, 2), (1, 2, 4), (0, 1, 3), (2, 4))


def make(case: Case, **options: Any) -> Method:
    return METHODS[case[0]](**case[1], **options)


def named(case: Case) -> str:
    return " ".join([case[0], *map(str, case[1].values())])


@cache
def trained(
    method: Method,
    cohorts: tuple[tuple[int, ...], ...] = COHORTS,
    *,
    sizes: tuple[int, ...] = SIZES,
) -> Tensor:
    """The global model after a round of each cohort, of clients that take unequally many steps."""
    data = clusters(sizes=sizes)
    training = make_trainer(method, data.federation, mlp())
    simulated = make_rounds(
        training,
        data.federation,
        participation=Scripted(cohorts),
        lr_decay=0.9,
    )
    return run_rounds(simulated, len(cohorts))[-1][0].x


PEOPLE = population(clusters().federation)
PAIR = Clients(np.array([3, 4]), np.array([20, 9]), np.array([[20, 0], [4, 5]]), np.array([6, 4]))


def context(x: Vec, message: State) -> Context:
    """What two clients see, for direct calls of a method's hooks."""
    return Context(5, 0, x, message, PEOPLE, PAIR, np.full(2, 0.1), {})


def cohort(samples: Ints, steps: Ints, report: Report) -> Cohort:
    """What the server knows of clients that answered, for direct calls of a method's hooks."""
    ids, rates, rng = np.arange(len(samples)), np.full(len(samples), 0.1), np.random.default_rng(0)
    return Cohort(0, ids, samples, steps, 0.1, rates, report, PEOPLE, Network(linear()).layout, rng)


class Cubic:
    """The gradient w³, which notes down where it is asked for."""

    def __init__(self) -> None:
        self.points: list[Tensor] = []

    def __call__(self, at: Vec) -> Vec:
        self.points.append(at)
        return at**3

    def shifted(self, e: Vec) -> GradientOracle:
        return Elsewhere(self, lambda w: w + e)

    def ascended(self, rho: float) -> GradientOracle:
        return Elsewhere(self, lambda w: w + perturbation(self(w), rho))

    def of_classes(self, classes: Tensor) -> Callable[[Vec], Vec]:
        raise NotImplementedError

    def generators(self) -> list[np.random.Generator]:
        raise NotImplementedError


@dataclass(frozen=True)
class Elsewhere:
    """An oracle asked at another point."""

    oracle: GradientOracle
    move: Callable[[Vec], Vec]

    def __call__(self, w: Vec) -> Vec:
        return self.oracle(self.move(w))

    def shifted(self, e: Vec) -> GradientOracle:
        return Elsewhere(self, lambda w: w + e)

    def ascended(self, rho: float) -> GradientOracle:
        return Elsewhere(self, lambda w: w + perturbation(self(w), rho))

    def of_classes(self, classes: Tensor) -> Callable[[Vec], Vec]:
        raise NotImplementedError

    def generators(self) -> list[np.random.Generator]:
        raise NotImplementedError


# --- the ascent ----------------------------------------------------------------------------------------


def test_the_gradient_is_taken_rho_uphill_from_each_client() -> None:
    w = torch.tensor([[1.0, -2.0, 3.0], [0.1, 0.0, 0.0], [50.0, 1.0, -7.0]], dtype=torch.float64)
    grad = Cubic()
    g, _ = FedSAM(rho=0.3).direction(w, grad, {}, context(w[0], {}))
    assert torch.equal(grad.points[0], w)  # where the training loss and BatchNorm's statistics come from
    assert torch.allclose(grad.points[1] - w, 0.3 * w**3 / (w**3).norm(dim=-1, keepdim=True), rtol=1e-3)
    assert torch.equal(g, grad.points[1] ** 3)


def test_a_zero_direction_gives_no_perturbation_and_no_nan() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert torch.allclose(perturbation(rows, 0.5), torch.tensor([[0.0, 0.0], [0.3, 0.4]]))


@pytest.mark.parametrize("case", FAMILY, ids=named)
def test_a_negative_radius_is_refused(case: Case) -> None:
    with pytest.raises(ValueError, match=r"rho = -0\.1"):
        make(case, rho=-0.1)


# --- reductions -------------------------------------------------------------------


@pytest.mark.parametrize("case", CHILDREN, ids=named)
def test_a_method_without_radius_is_its_parent_and_with_one_it_is_not(case: Case) -> None:
    kind = METHODS[PARENTS[case[0]]]
    parent = trained((the_long_way(kind) if case[0] == "fedsmoo" else kind)())
    assert torch.equal(trained(make(case, rho=0.0)), parent)
    assert not torch.allclose(trained(make(case, rho=0.1)), parent, rtol=1e-3)


def random_like(state: State, seed: int) -> State:
    """The same keys and shapes with random vectors; numbers such as alpha stay."""
    rng = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(value.shape, generator=rng, dtype=value.dtype) if value.numel() > 2 else value
        for key, value in state.items()
    }


# --- FedLESAM: whose memory (tests/methods/test_fedlesam.py has where it looks) ----------------------------


def test_both_memories_are_one_when_everybody_takes_part_in_every_round() -> None:
    everybody, some = ((0, 1, 2, 3, 4),) * 3, COHORTS
    client, server = FedLESAM(memory="client"), FedLESAM(memory="server")
    assert torch.allclose(trained(client, everybody), trained(server, everybody), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(trained(client, some), trained(server, some), rtol=1e-3)


@pytest.mark.parametrize(("memory", "sent", "kept"), [("client", 1, 1), ("server", 2, 0)])
def test_a_memory_costs_a_vector_kept_or_a_vector_sent(memory: Any, sent: int, kept: int) -> None:
    method, x = FedLESAM(memory=memory), torch.ones(7)
    assert 1 + len(method.broadcast(method.init(x, PEOPLE))) == sent
    assert len(method.init_client(x, PAIR)) == kept


# --- FedSMOO -----------------------------------------------------------------------------------------------


def test_fedsmoo_perturbs_by_rho_against_its_dual_and_the_shared_perturbation() -> None:
    method = FedSMOO(rho=0.2, lam=0.5)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    shared = torch.tensor([0.1, 0.0, -0.1, 0.0, 0.1], dtype=torch.float64)
    ctx = context(x, {"perturbation": shared})
    c = random_like(method.init_client(x, PAIR), 3)
    w = x + torch.tensor([[0.5], [-0.25]], dtype=torch.float64)
    grad = Cubic()
    v, after = method.direction(w, grad, c, ctx)
    e = grad.points[1] - w
    u = w**3 - c["mu"] - shared
    assert torch.equal(grad.points[0], w)
    assert torch.allclose(e, 0.2 * u / u.norm(dim=-1, keepdim=True), rtol=1e-5)
    assert torch.allclose(after["mu"], c["mu"] + e - shared)
    assert torch.allclose(v, (w + e) ** 3 + 0.5 * (c["dual"] + w - x))


def test_fedsmoo_uploads_two_vectors_and_shares_the_mean_dual_at_length_rho() -> None:
    method = FedSMOO(rho=0.2)
    x = torch.zeros(5, dtype=torch.float64)
    s = method.init(x, PEOPLE)
    c = random_like(method.init_client(x, PAIR), 4)
    assert set(c) == {"dual", "mu"}
    upload, report, kept = method.finish(x.repeat(2, 1), c, context(x, method.broadcast(s)))
    assert set(upload) == {"delta", "mu"}
    assert torch.equal(kept["mu"], c["mu"])  # the dual is carried into the client's next round
    answered = cohort(PAIR.samples, PAIR.steps, report)
    mean = c["mu"].mean(dim=0)
    _, s = method.update(x, s, UploadRows(upload), answered)
    assert torch.allclose(s["perturbation"], 0.2 * mean / mean.norm(), rtol=1e-5)


# --- FedWMSAM ----------------------------------------------------------------------------------------------


def test_fedwmsam_of_one_client_is_fedcm_and_without_momentum_it_is_scaffold() -> None:
    plain: dict[str, Any] = {"rho": 0.0, "alpha_rate": 0.0}
    alone: dict[str, Any] = {"cohorts": ((0,),) * 4, "sizes": (23,)}
    one_client = trained(FedWMSAM(**plain), **alone)
    assert torch.allclose(one_client, trained(FedCM(), **alone), rtol=1e-9, atol=1e-12)
    assert torch.allclose(trained(FedWMSAM(alpha=1 - 1e-7, **plain)), trained(SCAFFOLD()), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(trained(FedWMSAM(**plain)), trained(FedCM()), rtol=1e-3)


def test_fedwmsam_mixes_the_corrected_gradient_uphill_with_the_momentum() -> None:
    method = FedWMSAM(rho=0.2, alpha=0.4)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    s = random_like(method.init(x, PEOPLE), 5)
    ctx = context(x, method.broadcast(s))
    c = random_like(method.init_client(x, PAIR), 6)
    momentum = s["momentum"] + 0.4 / 0.6 * (s["control"] - c["control"])
    w, grad = x.repeat(2, 1), Cubic()
    for b in range(3):
        v, c = method.direction(w, grad, c, ctx)
        u = x + b * momentum - w
        e = 0.2 * u / u.norm(dim=-1, keepdim=True) if b else torch.zeros_like(w)
        assert len(grad.points) == b + 1  # one gradient a step
        assert torch.allclose(grad.points[b], w + e, rtol=1e-5)
        assert not b or bool(((grad.points[b] - w) * momentum).sum() > 0)  # Δ is gradient-like: uphill
        corrected = grad.points[b] ** 3 + s["control"] - c["control"]
        assert torch.allclose(v, 0.4 * corrected + 0.6 * s["momentum"])
        w = w - 0.1 * v
    _, _, c = method.finish(w, c, ctx)
    assert not c["step"].any()  # the next round counts anew


@pytest.mark.parametrize(("length", "seen", "goal"), [(-1.0, 0.0, 0.1), (1.0, 2.0, 0.9), (0.0, 0.0, 0.1)])
def test_fedwmsam_trusts_momentum_less_the_more_clients_disagree_with_it(
    length: float, seen: float, goal: float
) -> None:
    method = FedWMSAM(alpha=0.3, alpha_rate=0.25)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    s = method.init(x, PEOPLE)
    s = {**s, "momentum": abs(length) * x.square()}  # of length 0 in the first round
    w = x + (length or 1.0) * torch.outer(torch.tensor([0.1, 2.0], dtype=torch.float64), x.square())
    _, report, _ = method.finish(w, method.init_client(x, PAIR), context(x, method.broadcast(s)))
    np.testing.assert_allclose(report["disagreement"], seen, atol=1e-12)
    after = method.next_alpha(s, cohort(PAIR.samples, PAIR.steps, report))
    assert after == pytest.approx(0.75 * 0.3 + 0.25 * goal)


def test_fedwmsam_believes_no_disagreement_above_2_and_takes_no_alpha_of_1() -> None:
    method = FedWMSAM(alpha=0.3, alpha_rate=1.0)
    s = method.init(torch.zeros(5, dtype=torch.float64), PEOPLE)
    report = {"disagreement": np.array([9.0, -9.0, 0.4, 0.4])}
    assert method.next_alpha(
        s, cohort(np.ones(4, dtype=np.int64), np.ones(4, dtype=np.int64), report)
    ) == pytest.approx(0.7)  # of 2, 0, 0.4 and 0.4
    with pytest.raises(ValueError, match=r"alpha = 1\.0 is not allowed: it must be below 1"):
        FedWMSAM(alpha=1.0)


@dataclass(frozen=True, kw_only=True)
class MoFedSAMWCM(WCM, MoFedSAM):
    """MoFedSAM with client weights and adaptive alpha."""


def test_mofedsam_takes_client_weights_and_adaptive_alpha_from_wcm() -> None:
    data, method = clusters(), MoFedSAMWCM()
    training = make_trainer(method, data.federation, mlp())
    simulated = make_rounds(training, data.federation)
    people = training.population
    scores = method.client_statistics(data.federation.counts, people)["score"]
    start = simulated.start(*training.forward.network.initial())
    answered = cohort(data.federation.samples, np.ones(5, dtype=np.int64), {"score": scores})
    expected = client_weights(scores, temperature(people.prior[None], None, method.temperature_scale))
    np.testing.assert_allclose(method.weights(start.method, answered), expected)
    assert np.ptp(expected) > 0.01
    after, _ = simulated.step(start)
    mean = float(np.mean(scores))
    apart = float(np.mean(local_deviations(data.federation.counts)))
    alpha = adaptive_alpha(apart, mean, mean, method.alpha)
    assert float(after.method["alpha"]) == pytest.approx(alpha)
    assert alpha > 0.2


def test_mofedsam_with_wcm_is_fedwcm_without_radius_and_mofedsam_without_the_parts() -> None:
    assert torch.equal(trained(MoFedSAMWCM(rho=0.0)), trained(FedWCM()))
    assert torch.equal(trained(MoFedSAMWCM(weighting=False, adaptive=False)), trained(MoFedSAM()))
    assert not torch.allclose(trained(MoFedSAMWCM()), trained(FedWCM()), rtol=1e-3)
