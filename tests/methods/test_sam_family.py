"""Sharpness-aware methods: where they take their gradients, what they reduce to, and what they must not touch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwcm.balance import adaptive_alpha, client_weights, discrepancy, temperature
from fedwcm.config import from_settings
from fedwcm.core.batches import Batch
from fedwcm.core.federation import InMemory
from fedwcm.core.forward import OneByOne
from fedwcm.core.method import Method
from fedwcm.core.objective import Objective, View
from fedwcm.core.types import Clients, Context, State, Vec
from fedwcm.experiment import build
from fedwcm.methods import METHODS
from fedwcm.methods.fedcm import FedCM
from fedwcm.methods.fedlesam import FedLESAM
from fedwcm.methods.fedsmoo import FedSMOO
from fedwcm.methods.fedwcm import FedWCM
from fedwcm.methods.fedwmsam import FedWMSAM
from fedwcm.methods.mofedsam import MoFedSAM
from fedwcm.methods.sam import ascended, perturbation
from fedwcm.methods.scaffold import SCAFFOLD
from fedwcm.methods.wcm import WCM
from fedwcm.sim.progress import Silent
from fedwcm.sim.runner import Runner

from ..factories import Scripted, clusters, cohort, context, local_training, mlp, play, population, simulation

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
CHILDREN: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in PARENTS] + [
    (name, {"memory": "server"}) for name in PARENTS if name.startswith("fedlesam")
]
FAMILY = [*CHILDREN, ("fedwmsam", {})]
COHORTS = ([0, 2], [1, 2, 4], [0, 1, 3], [2, 4], [0, 2, 3])


def make(name: str, **options: Any) -> Method:
    return METHODS[name](**options)


def named(case: tuple[str, dict[str, Any]]) -> str:
    return " ".join([case[0], *map(str, case[1].values())])


def trained(
    method: Method, cohorts: Sequence[Sequence[int]] = COHORTS, *, sizes: Any = None, stacked: bool = False
) -> Tensor:
    """The global model after a round of each cohort, of clients that take unequally many steps."""
    data = clusters() if sizes is None else clusters(sizes=sizes)
    training = local_training(method, data.federation, mlp(), stacked=stacked)
    simulated = simulation(
        training,
        data.federation,
        participation=Scripted(cohorts, len(data.parts)),
        block=8 if stacked else 1,
        lr_decay=0.9,
    )
    return play(simulated, len(cohorts))[-1][0].x


# --- the ascent ----------------------------------------------------------------------------------------


def test_the_ascended_gradient_is_taken_rho_uphill_from_each_client() -> None:
    curvature = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
    w = torch.tensor([[1.0, -2.0, 3.0], [0.1, 0.0, 0.0], [50.0, 1.0, -7.0]], dtype=torch.float64)
    points: list[Tensor] = []

    def grad(at: Vec) -> Vec:
        points.append(at)
        return curvature * at

    g = ascended(grad, 0.3)(w)
    assert torch.equal(points[0], w)  # where the training loss and BatchNorm's statistics come from
    step, slope = points[1] - w, curvature * w
    assert torch.allclose(step.norm(dim=-1), torch.full((3,), 0.3, dtype=torch.float64), rtol=1e-5)
    assert torch.allclose((step * slope).sum(-1), 0.3 * slope.norm(dim=-1), rtol=1e-5)
    assert torch.equal(g, curvature * points[1])


def test_a_zero_direction_gives_no_perturbation_and_no_nan() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert torch.allclose(perturbation(rows, 0.5), torch.tensor([[0.0, 0.0], [0.3, 0.4]]))


@pytest.mark.parametrize("name", [*PARENTS, "fedwmsam"])
def test_a_negative_radius_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"rho = -0\.1"):
        make(name, rho=-0.1)


# --- reductions, fixed points, engines -------------------------------------------------------------------


@pytest.mark.parametrize("case", CHILDREN, ids=named)
def test_a_method_without_radius_is_its_parent_and_with_one_it_is_not(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    parent = trained(make(PARENTS[name]))
    assert torch.equal(trained(make(name, rho=0.0, **options)), parent)
    assert not torch.allclose(trained(make(name, rho=0.1, **options)), parent, rtol=1e-3)


@dataclass(frozen=True, kw_only=True)
class SquaredError(Objective):
    """Half the squared distance of the outputs from the one-hot labels."""

    def loss(self, view: View, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        wanted = nn.functional.one_hot(batch.labels, view.logits.shape[-1])
        return batch.mean((view.logits - wanted).square().sum(dim=-1) / 2), o


@pytest.mark.parametrize("case", FAMILY, ids=named)
def test_a_point_at_which_every_gradient_is_zero_stays(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    method = make(name, **options)
    labels = np.array([0, 1, 1, 0, 1, 0, 0])
    parts = [np.arange(4), np.arange(4, 7)]
    federation = InMemory(torch.eye(2, dtype=torch.float64)[labels], labels, parts, 2)
    for scale, stays in ((1.0, True), (0.5, False)):
        module = nn.Linear(2, 2, bias=False).double()
        module.weight.data = scale * torch.eye(2, dtype=torch.float64)
        before = module.weight.detach().clone().flatten()
        training = local_training(method, federation, module, objective=SquaredError(), batch_size=2)
        played = play(simulation(training, federation, participation=Scripted([[0], [0, 1], [1]], 2)), 3)
        assert torch.equal(played[-1][0].x, before) is stays


@pytest.mark.parametrize("case", FAMILY, ids=named)
def test_stacked_clients_do_as_clients_one_by_one(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    method = make(name, **options)
    assert torch.allclose(trained(method, stacked=True), trained(method), rtol=1e-9, atol=1e-12)


# --- purity ------------------------------------------------------------------------------------------------


def random_like(state: State, seed: int) -> State:
    """The same keys and shapes with random vectors; numbers such as alpha stay."""
    rng = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(value.shape, generator=rng, dtype=value.dtype) if value.numel() > 2 else value
        for key, value in state.items()
    }


def copied(*values: Any) -> Any:
    return [{k: v.clone() for k, v in x.items()} if isinstance(x, dict) else x.clone() for x in values]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(torch.equal(one, other))


def pair() -> Clients:
    return Clients(np.array([3, 4]), np.array([20, 9]), np.array([[20, 0], [4, 5]]), np.array([6, 4]))


@pytest.mark.parametrize("case", FAMILY, ids=named)
def test_hooks_are_pure(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    method = make(name, **options)
    people = population(clusters().federation)
    x = torch.linspace(-1, 1, 7, dtype=torch.float64)
    s = random_like(method.init(x, people, {}), 1)
    ctx = context(x, pair(), people, method.message(s, {}))
    c = random_like(method.init_client(x, pair()), 2)
    w = x + torch.outer(torch.tensor([1.0, -2.0], dtype=torch.float64), x.square())
    arguments = (w, c, ctx.message, x, s)
    before = copied(*arguments)

    def grad(at: Vec) -> Vec:
        return 3.0 * at + 1.0

    def run() -> Any:
        step = method.direction(w, grad, c, ctx)
        upload, report, kept = method.finish(w, c, ctx)
        answered = cohort(people, [20, 9], report=report)
        agg = {n: torch.as_tensor(k.weights) @ upload[k.key] for n, k in method.combine(s, answered).items()}
        return step, upload, report, kept, method.update(x, s, agg, answered)

    assert same(run(), run())
    assert same(list(arguments), before)


# --- FedLESAM: the whole vector, of the right earlier model -----------------------------------------------


class Recording(OneByOne):
    """Notes down every model that it is asked about, with the first one of each client's round in front."""

    def start(self, buffers: Vec) -> None:
        super().start(buffers)
        self.rounds: list[list[Tensor]] = [*getattr(self, "rounds", []), []]

    def __call__(self, w: Vec, inputs: Tensor, track: bool) -> View:
        self.rounds[-1].append(w[0].clone())
        return super().__call__(w, inputs, track)


def first_points(method: Method, cohorts: list[list[int]]) -> tuple[list[Tensor], list[Tensor]]:
    """The model sent in each round, and where its only client took its first gradient."""
    data = clusters()
    training = local_training(method, data.federation, mlp())
    forward = Recording(training.forward.network)
    simulated = simulation(
        replace(training, forward=forward), data.federation, participation=Scripted(cohorts, len(data.parts))
    )
    sent = [forward.network.initial()[0], *(state.x for state, _ in play(simulated, len(cohorts)))]
    return sent, [points[0] for points in forward.rounds]


@pytest.mark.parametrize("name", ["fedlesam", "fedlesam-s", "fedlesam-d"])
def test_the_perturbation_is_the_whole_difference_of_global_models_scaled_to_rho(name: str) -> None:
    x, at = first_points(make(name, rho=0.2), [[0], [0]])
    assert torch.equal(at[0], x[0])  # no earlier model, no perturbation
    e = at[1] - x[1]
    assert torch.allclose(e, 0.2 * (x[0] - x[1]) / (x[0] - x[1]).norm(), rtol=1e-4)
    tensors = torch.split(e, [24, 6, 18, 3])  # weights and biases of the two layers
    # A flat vector that is read with a tensor's index shifts all of the tensor by one number.
    assert all(piece.std() > 1e-3 for piece in tensors)


def test_a_client_remembers_its_own_last_model_and_the_server_its_last_step() -> None:
    def unit(v: Tensor) -> Tensor:
        return v.div(v.norm())

    x, at = first_points(FedLESAM(rho=0.2, memory="client"), [[0], [1], [0]])
    assert torch.equal(at[1], x[1])  # client 1 has not been here before
    assert torch.allclose(at[2] - x[2], 0.2 * unit(x[0] - x[2]), rtol=1e-4)
    x, at = first_points(FedLESAM(rho=0.2, memory="server"), [[0], [1], [0]])
    assert torch.equal(at[0], x[0])
    assert torch.allclose(at[1] - x[1], 0.2 * unit(x[0] - x[1]), rtol=1e-4)
    assert torch.allclose(at[2] - x[2], 0.2 * unit(x[1] - x[2]), rtol=1e-4)


def test_both_memories_are_one_when_everybody_takes_part_in_every_round() -> None:
    everybody, some = [[0, 1, 2, 3, 4]] * 4, COHORTS
    client, server = FedLESAM(memory="client"), FedLESAM(memory="server")
    assert torch.allclose(trained(client, everybody), trained(server, everybody), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(trained(client, some), trained(server, some), rtol=1e-3)


@pytest.mark.parametrize(("memory", "sent", "kept"), [("client", 1, 1), ("server", 2, 0)])
def test_a_memory_costs_a_vector_kept_or_a_vector_sent(memory: Any, sent: int, kept: int) -> None:
    method, x = FedLESAM(memory=memory), torch.ones(7)
    people = population(clusters().federation)
    assert 1 + len(method.message(method.init(x, people, {}), {})) == sent
    assert len(method.init_client(x, pair())) == kept


# --- FedSMOO -----------------------------------------------------------------------------------------------


def test_fedsmoo_perturbs_by_rho_against_its_dual_and_the_shared_perturbation() -> None:
    method, people = FedSMOO(rho=0.2, lam=0.5), population(clusters().federation)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    shared = torch.tensor([0.1, 0.0, -0.1, 0.0, 0.1], dtype=torch.float64)
    ctx = context(x, pair(), people, {"perturbation": shared})
    c = random_like(method.init_client(x, pair()), 3)
    w = x + torch.tensor([[0.5], [-0.25]], dtype=torch.float64)
    points: list[Tensor] = []

    def grad(at: Vec) -> Vec:
        points.append(at)
        return at**3

    v, after = method.direction(w, grad, c, ctx)
    e = points[1] - w
    u = w**3 - c["mu"] - shared
    assert torch.equal(points[0], w)
    assert torch.allclose(e, 0.2 * u / u.norm(dim=-1, keepdim=True), rtol=1e-5)
    assert torch.allclose(after["mu"], c["mu"] + e - shared)
    assert torch.allclose(v, (w + e) ** 3 + 0.5 * (c["dual"] + w - x))


def test_fedsmoo_uploads_two_vectors_and_shares_the_mean_dual_at_length_rho() -> None:
    method, people = FedSMOO(rho=0.2), population(clusters().federation)
    x = torch.zeros(5, dtype=torch.float64)
    s = method.init(x, people, {})
    c = random_like(method.init_client(x, pair()), 4)
    assert set(c) == {"dual", "mu"}
    upload, report, kept = method.finish(x.repeat(2, 1), c, context(x, pair(), people, method.message(s, {})))
    assert set(upload) == {"delta", "mu"}
    assert torch.equal(kept["mu"], c["mu"])  # the dual is carried into the client's next round
    answered = cohort(people, [20, 9], report=report)
    agg = {n: torch.as_tensor(k.weights) @ upload[k.key] for n, k in method.combine(s, answered).items()}
    mean = c["mu"].mean(dim=0)
    _, s = method.update(x, s, agg, answered)
    assert torch.allclose(s["perturbation"], 0.2 * mean / mean.norm(), rtol=1e-5)


# --- FedWMSAM ----------------------------------------------------------------------------------------------


def test_fedwmsam_of_one_client_is_fedcm_and_without_momentum_it_is_scaffold() -> None:
    plain: dict[str, Any] = {"rho": 0.0, "alpha_rate": 0.0}
    alone: dict[str, Any] = {"cohorts": [[0]] * 4, "sizes": (23,)}
    one_client = trained(FedWMSAM(**plain), **alone)
    assert torch.allclose(one_client, trained(FedCM(), **alone), rtol=1e-9, atol=1e-12)
    assert torch.allclose(trained(FedWMSAM(alpha=1 - 1e-7, **plain)), trained(SCAFFOLD()), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(trained(FedWMSAM(**plain)), trained(FedCM()), rtol=1e-3)


def test_fedwmsam_mixes_the_corrected_gradient_uphill_with_the_momentum() -> None:
    method, people = FedWMSAM(rho=0.2, alpha=0.4), population(clusters().federation)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    s = random_like(method.init(x, people, {}), 5)
    ctx = context(x, pair(), people, method.message(s, {}))
    c = random_like(method.init_client(x, pair()), 6)
    momentum = s["momentum"] + 0.4 / 0.6 * (s["control"] - c["control"])
    w, points = x.repeat(2, 1), []

    def grad(at: Vec) -> Vec:
        points.append(at)
        return at**3

    for b in range(3):
        v, c = method.direction(w, grad, c, ctx)
        u = x + b * momentum - w
        e = 0.2 * u / u.norm(dim=-1, keepdim=True) if b else torch.zeros_like(w)
        assert torch.allclose(points[-1], w + e, rtol=1e-5)
        assert not b or bool(((points[-1] - w) * momentum).sum() > 0)  # Δ is gradient-like: uphill
        assert torch.allclose(v, 0.4 * (points[-1] ** 3 + s["control"] - c["control"]) + 0.6 * s["momentum"])
        w = w - 0.1 * v
    assert len(points) == 3  # one gradient a step
    _, _, c = method.finish(w, c, ctx)
    assert not c["step"].any()  # the next round counts anew


@pytest.mark.parametrize(("sign", "goal"), [(-1.0, 0.1), (1.0, 0.9)])
def test_fedwmsam_trusts_the_momentum_less_the_more_clients_disagree_with_it(sign: float, goal: float) -> None:
    method, people = FedWMSAM(alpha=0.3, alpha_rate=0.25), population(clusters().federation)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    s = random_like(method.init(x, people, {}), 7)
    ctx = context(x, pair(), people, method.message(s, {}))
    w = x + sign * torch.outer(torch.tensor([0.1, 2.0], dtype=torch.float64), s["momentum"])
    _, report, _ = method.finish(w, method.init_client(x, pair()), ctx)
    np.testing.assert_allclose(report["disagreement"], 1.0 + sign, atol=1e-12)
    after = method.next_alpha(s, cohort(people, [20, 9], report=report))
    assert after == pytest.approx(0.75 * 0.3 + 0.25 * goal)


def test_fedwmsam_keeps_alpha_while_there_is_no_momentum_to_disagree_with() -> None:
    method, people = FedWMSAM(alpha=0.1), population(clusters().federation)
    x = torch.ones(5)
    s = method.init(x, people, {})
    ctx = context(x, pair(), people, method.message(s, {}))
    _, report, _ = method.finish(torch.rand(2, 5), method.init_client(x, pair()), ctx)
    assert method.next_alpha(s, cohort(people, [20, 9], report=report)) == pytest.approx(0.1)


# --- with FedWCM's two parts ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MoFedSAMWCM(WCM, MoFedSAM):
    """MoFedSAM with client weights and adaptive alpha."""


def test_mofedsam_takes_client_weights_and_adaptive_alpha_from_wcm() -> None:
    data, method = clusters(), MoFedSAMWCM()
    training = local_training(method, data.federation, mlp())
    simulated = simulation(training, data.federation)
    people = training.population
    scores = method.survey(data.federation.counts, people)["score"]
    start = simulated.start(*training.forward.network.initial())
    answered = cohort(people, data.federation.samples.tolist(), report={"score": scores})
    expected = client_weights(scores, temperature(people.prior[None], None, method.temperature_scale))
    np.testing.assert_allclose(method.weights(start.method, answered), expected)
    assert np.ptp(expected) > 0.01
    after, _ = simulated.play(start)
    mean = float(np.mean(scores))
    alpha = adaptive_alpha(discrepancy(people.prior[None], None), mean, mean, method.alpha)
    assert float(after.method["alpha"]) == pytest.approx(alpha)
    assert alpha > 0.2


def test_mofedsam_with_wcm_is_fedwcm_without_radius_and_mofedsam_without_the_parts() -> None:
    assert torch.equal(trained(MoFedSAMWCM(rho=0.0)), trained(FedWCM()))
    assert torch.equal(trained(MoFedSAMWCM(weighting=False, adaptive=False)), trained(MoFedSAM()))
    assert not torch.allclose(trained(MoFedSAMWCM()), trained(FedWCM()), rtol=1e-3)


# --- training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PARENTS, "fedwmsam"])
def test_a_few_rounds_on_digits_learn(name: str) -> None:
    config = from_settings({"method.name": name, "run.rounds": 8, "run.eval_every": 8, "data.imbalance": 1.0})
    finished = Runner(build(config), None, Silent()).run()
    assert float(str(finished.summary["final_accuracy"])) > 0.4  # chance is 0.1
