"""Laws of the methods that act on the server or reduce the clients' drift, on quadratics with known answers.

Client k's loss is the mean over its samples of ½ a w² − b w, coordinate by coordinate: a sample carries (a, b).
The real engine trains it, in float64, with clients of unequal size and so unequal numbers of local steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwcm.core.batch import Batch, InMemoryFederation, Outputs
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.core.types import Context, State
from fedwcm.engine.fast.affine_step import Gradient  # type: ignore[attr-defined]
from fedwcm.engine.forward import VmapForward
from fedwcm.engine.network import Network
from fedwcm.engine.options import ParticipationOptions
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.engine.server import RoundMeasures
from fedwcm.methods import METHODS

from ..factories import Scripted, make_rounds, make_trainer

Array = NDArray[np.float64]

NAMES = ("fedadam", "fedavg-cheng", "fedavgm", "feddyn", "fedprox", "mime", "mimelite", "scaffold", "slowmo")

DIM = 3
SIZES = (3, 5, 9, 14, 8, 11)
EPOCHS, BATCH, LONGEST = 2, 4, 8
"""The clients take 2, 4, 6, 8, 4, 6 steps: E·⌈n/b⌉, neither one epoch's nor the fraction E·n/b."""

START = np.linspace(-1.0, 1.0, DIM)
HALF, ALL = ParticipationOptions(fraction=0.5), ParticipationOptions(fraction=1.0)


class Bowl(nn.Module):
    """One vector of parameters; the output for a sample is its loss, a number a coordinate."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(START.copy()))

    def forward(self, samples: Tensor) -> Tensor:
        a, b = samples.chunk(2, dim=-1)
        return 0.5 * a * self.w.square() - b * self.w


@dataclass(frozen=True, kw_only=True)
class Output(Loss):
    """The loss is the model's output."""

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        return batch.mean(outputs.logits.sum(dim=-1)), o


@dataclass(frozen=True, eq=False)
class Problem:
    """Curvature `a` and slope `b` of every sample, client by client."""

    a: list[Array]
    b: list[Array]

    def optimum(self, average: str) -> Array:
        """The minimiser of the mean over clients, even or weighted by samples."""
        means = ([v.mean(axis=0) for v in values] for values in (self.a, self.b))
        weights = None if average == "uniform" else [len(v) for v in self.a]
        a, b = (np.average(mean, axis=0, weights=weights) for mean in means)
        return np.asarray(b / a)

    def gradient(self, x: Array) -> Array:
        """Of the mean over clients, weighted by samples."""
        return np.asarray(np.concatenate(self.a).mean(axis=0) * x - np.concatenate(self.b).mean(axis=0))

    def federation(self) -> InMemoryFederation:
        rows = torch.from_numpy(np.concatenate([np.concatenate(self.a), np.concatenate(self.b)], axis=1))
        parts = np.split(np.arange(len(rows)), np.cumsum([len(a) for a in self.a])[:-1])
        return InMemoryFederation(rows, np.zeros(len(rows), dtype=np.int64), parts, classes=1)


def problem(sizes: Sequence[int] = SIZES, noise: float = 0.0, curved: bool = True) -> Problem:
    """Clients with different curvatures and minimisers; samples differ within a client only by `noise`."""
    rng = np.random.default_rng(3)
    a = [rng.uniform(0.5, 2.0, DIM) + noise * rng.uniform(0, 1, (n, DIM)) for n in sizes]
    b = [v * rng.normal(size=DIM) + noise * rng.normal(size=v.shape) for v in a]
    if not curved:
        a = [0.0 * v for v in a]
    return Problem(a, b)


@dataclass(frozen=True, eq=False)
class Run:
    """The states after each round, and the engine that played them."""

    states: list[ServerState]
    records: list[RoundMeasures]
    engine: Rounds

    @property
    def xs(self) -> Array:
        return np.stack([state.x.numpy() for state in self.states])

    def distance(self, target: Array) -> float:
        return float(np.abs(self.xs[-1] - target).max())

    def server(self, key: str) -> Array:
        return self.states[-1].method[key].numpy()

    def clients(self, key: str) -> Array:
        return self.engine.store.read(np.arange(len(SIZES)), torch.device("cpu"))[key].numpy()


def train(
    name: str,
    rounds: int,
    task: Problem | None = None,
    *,
    who: Any = HALF,
    lr: float = 0.1,
    lr_decay: float = 1.0,
    epochs: int = EPOCHS,
    batch_size: int = BATCH,
    stacked: bool = True,
    **options: Any,
) -> Run:
    federation = (task or problem()).federation()
    training = make_trainer(
        METHODS[name](**options),
        federation,
        Bowl(),
        stacked=stacked,
        loss=Output(),
        epochs=epochs,
        batch_size=batch_size,
    )
    engine = make_rounds(
        training, federation, participation=who, block=64 if stacked else 1, lr=lr, lr_decay=lr_decay
    )
    state, states, records = engine.start(*training.forward.network.initial()), [], []
    for _ in range(rounds):
        state, record = engine.step(state)
        states.append(state)
        records.append(record)
    return Run(states, records, engine)


@pytest.mark.parametrize("average", ["uniform", "samples"])
@pytest.mark.parametrize(
    ("name", "rounds", "options"), [("scaffold", 100, {}), ("feddyn", 150, {"lam": 1.5, "lr": 0.3})]
)
def test_drift_correction_reaches_the_optimum_with_half_of_the_clients(
    name: str, rounds: int, options: dict[str, Any], average: str
) -> None:
    run = train(name, rounds, average=average, **options)
    optima = {name: problem().optimum(name) for name in ("uniform", "samples")}
    assert run.distance(optima.pop(average)) < 1e-12
    assert run.distance(*optima.values()) > 0.05


@pytest.mark.parametrize("who", [HALF, ALL])
def test_fedavg_does_not_reach_the_optimum(who: ParticipationOptions) -> None:
    late = train("fedavg", 60, who=who, average="uniform").xs[-20:]
    assert np.abs(late - problem().optimum("uniform")).max(axis=1).min() > 0.03


@pytest.mark.parametrize("average", ["uniform", "samples"])
def test_mime_reaches_the_optimum_through_noisy_batches_if_all_take_part(average: str) -> None:
    task = problem(noise=0.5)
    run = train("mime", 60, task, who=ALL, beta=0.3, average=average)
    assert run.distance(task.optimum(average)) < 1e-12


@pytest.mark.parametrize("name", ["mimelite", "fedavg-cheng", "fedprox"])
def test_without_a_control_variate_or_dual_a_bias_stays(name: str) -> None:
    run = train(name, 40, who=ALL, average="uniform")
    assert run.distance(problem().optimum("uniform")) > 1e-3


def test_the_control_variate_of_a_constant_gradient_is_that_gradient() -> None:
    task = problem(curved=False)
    cohorts = [[0, 1, 2, 3, 4, 5], [1, 3, 4], [0, 1, 5], [1, 2, 3]]
    for rounds in range(1, 5):
        run = train("scaffold", rounds, task, who=Scripted(cohorts), lr_decay=0.8)
        np.testing.assert_allclose(run.clients("control"), [-b[0] for b in task.b], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "key", "average", "weights"),
    [
        ("scaffold", "control", "uniform", None),
        ("scaffold", "control", "samples", SIZES),
        ("feddyn", "dual", "uniform", None),
        ("feddyn", "dual", "samples", None),
    ],
)
def test_the_server_keeps_the_mean_over_all_clients_also_the_absent(
    name: str, key: str, average: str, weights: tuple[int, ...] | None
) -> None:
    for rounds in (1, 2, 7):
        run = train(name, rounds, lr_decay=0.8, average=average)
        mean = np.average(run.clients(key), axis=0, weights=weights)
        np.testing.assert_allclose(run.server(key), mean, rtol=1e-12, atol=1e-15)


def test_in_the_first_round_scaffold_is_fedavg_and_feddyn_fedprox() -> None:
    scaffold, feddyn = train("scaffold", 1), train("feddyn", 1, lam=0.3)
    fedavg, fedprox = train("fedavg", 1, average="uniform"), train("fedprox", 1, average="uniform", mu=0.3)
    np.testing.assert_allclose(scaffold.xs, fedavg.xs, rtol=1e-13)
    np.testing.assert_allclose(feddyn.xs - feddyn.server("dual"), fedprox.xs, rtol=1e-13)


def test_feddyn_hands_over_the_server_model_or_the_mean_of_the_clients() -> None:
    run = train("feddyn", 3, who=ALL)
    state, before = run.states[-1], run.states[-2]
    increments = run.clients("dual") - train("feddyn", 2, who=ALL).clients("dual")
    make: Callable[..., Method] = METHODS["feddyn"]
    averaged = make(eval_model="average").eval_params(state.x, state.method)
    np.testing.assert_allclose(averaged.numpy(), before.x.numpy() + increments.mean(axis=0), rtol=1e-12)
    assert make(eval_model="server").eval_params(state.x, state.method) is state.x
    assert (averaged - state.x).abs().max() > 1e-3


def test_scaffold_uploads_one_model_a_client() -> None:
    assert train("scaffold", 1).records[0].bytes_up == train("fedavg", 1).records[0].bytes_up


def test_fedavgm_and_slowmo_agree_at_a_constant_rate_and_part_under_a_decaying_one() -> None:
    for decay, same in ((1.0, True), (0.8, False)):
        ours, theirs = (
            train(name, 6, beta=0.7, lr_decay=decay, server_lr=0.9).xs for name in ("fedavgm", "slowmo")
        )
        assert bool(np.abs(ours - theirs).max() < 1e-12) is same
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12)


def test_momentum_is_in_gradients_for_slowmo_and_in_parameters_for_fedavgm() -> None:
    task, beta, lr, decay = problem(sizes=(8,), curved=False), 0.5, 0.1, 0.8
    gradient, steps = -task.b[0][0], 4
    options: dict[str, Any] = {"who": ALL, "beta": beta, "lr": lr, "lr_decay": decay}
    slow, fast = (train(name, 3, task, **options) for name in ("slowmo", "fedavgm"))
    memory = beta ** np.arange(2, -1, -1)
    np.testing.assert_allclose(slow.server("momentum"), steps * memory.sum() * gradient, rtol=1e-12)
    rates = lr * decay ** np.arange(3)
    np.testing.assert_allclose(fast.server("momentum"), steps * (memory @ rates) * gradient, rtol=1e-12)
    last_step = slow.xs[2] - slow.xs[1]
    np.testing.assert_allclose(last_step, -rates[2] * slow.server("momentum"), rtol=1e-12)


def test_fedadam_follows_its_moments_of_a_constant_increment() -> None:
    task = problem(curved=False)
    increment = train("fedavg", 1, task, who=ALL).xs[0] - START
    x = START
    for r, state in enumerate(train("fedadam", 4, task, who=ALL).xs, start=1):
        mean, square = (1 - 0.9**r) * increment, (1 - 0.99**r) * increment**2
        x = x + 0.1 * mean / (np.sqrt(square) + 0.01)
        np.testing.assert_allclose(state, x, rtol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_fedavg_m_steps_by_gamma_along_the_mean_gradient_at_any_rate(alpha: float) -> None:
    task, gamma = problem(curved=False), 0.7
    run = train("fedavg-cheng", 4, task, who=ALL, alpha=alpha, server_lr=gamma, lr_decay=0.8)
    gradient = -np.mean([b[0] for b in task.b], axis=0)
    share = np.cumsum(1 - (1 - alpha) ** np.arange(1, 5))[:, None]
    np.testing.assert_allclose(run.xs, START - gamma * share * gradient, rtol=1e-12)


def test_the_proximal_term_is_a_spring_to_the_received_model() -> None:
    task, mu, lr = problem(sizes=(8,)), 0.6, 0.1
    a, b = task.a[0][0], task.b[0][0]
    shrink = (1 - lr * (a + mu)) ** 4
    moved = train("fedprox", 1, task, who=ALL, mu=mu, lr=lr).xs[0] - START
    np.testing.assert_allclose(moved, -(1 - shrink) / (a + mu) * (a * START - b), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "parent", "parent_options"),
    [
        ("fedprox", {"mu": 0.0}, "fedavg", {}),
        ("fedavgm", {"beta": 0.0}, "fedavg", {}),
        ("slowmo", {"beta": 0.0}, "fedavg", {}),
        ("mimelite", {"beta": 0.0}, "fedavg", {}),
        ("feddyn", {"lam": 0.0}, "fedavg", {"average": "uniform"}),
        ("fedspeed", {"lam": 0.0, "rho": 0.0, "printed": True}, "fedavg", {"average": "uniform"}),
        ("fedadam", {"beta1": 0.0, "epsilon": 1e13, "server_lr": 1e13}, "fedavg", {}),
        ("fedavg-cheng", {"server_lr": 0.5}, "fedcm", {"server_step": "literal", "server_lr": 0.5}),
        ("fedavg-cheng", {"server_step": "average"}, "fedcm", {}),
    ],
)
def test_neutral_options_give_the_parent(
    name: str, options: dict[str, Any], parent: str, parent_options: dict[str, Any]
) -> None:
    ours, theirs = train(name, 5, lr_decay=0.9, **options), train(parent, 5, lr_decay=0.9, **parent_options)
    np.testing.assert_allclose(ours.xs, theirs.xs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("alpha", "parent", "parent_options"), [(1.0, "fedavg", {}), (0.1, "fedcm", {"alpha": 0.1})]
)
def test_fedavg_m_with_gamma_of_a_path_averages_equal_clients(
    alpha: float, parent: str, parent_options: dict[str, Any]
) -> None:
    even, lr, steps = problem(sizes=(8,) * 6), 0.1, 4
    ours = train("fedavg-cheng", 5, even, alpha=alpha, server_lr=lr * steps, lr=lr)
    np.testing.assert_allclose(ours.xs, train(parent, 5, even, lr=lr, **parent_options).xs, rtol=0, atol=1e-13)


def test_mime_without_momentum_and_with_one_full_batch_step_is_gradient_descent() -> None:
    task = problem(noise=0.5)
    x = START
    for state in train("mime", 3, task, who=ALL, beta=0.0, epochs=1, batch_size=100, lr=0.2).xs:
        x = x - 0.2 * task.gradient(x)
        np.testing.assert_allclose(state, x, rtol=1e-12)


def test_mime_is_mimelite_for_a_single_client_with_full_batches() -> None:
    options: dict[str, Any] = {"who": ALL, "beta": 0.4, "epochs": 5, "batch_size": 100}
    mime, lite = (train(name, 4, problem((8,), noise=0.5), **options).xs for name in ("mime", "mimelite"))
    np.testing.assert_allclose(mime, lite, rtol=1e-12)


def test_mimelite_averages_full_gradients_at_the_global_model_as_momentum() -> None:
    task, beta = problem(noise=0.5), 0.8
    run = train("mimelite", 3, task, who=ALL, beta=beta)
    momentum = np.zeros(DIM)
    for x in (START, *run.xs[:2]):
        momentum = beta * momentum + (1 - beta) * task.gradient(x)
    np.testing.assert_allclose(run.server("momentum"), momentum, rtol=1e-12)


class Counting(VmapForward):
    """Stacked clients that count their gradients."""

    gradients = 0

    def backward(self, *pairs: tuple[Tensor, Tensor]) -> Gradient:
        self.gradients += 1
        return super().backward(*pairs)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_takes_one_gradient_and_two_with_mime_and_a_probe_one_pass(name: str) -> None:
    federation, counting = problem().federation(), Counting(Network(Bowl()))
    training = make_trainer(METHODS[name](), federation, Bowl(), loss=Output(), epochs=EPOCHS, batch_size=BATCH)
    engine = make_rounds(replace(training, forward=counting), federation, block=64)
    engine.step(engine.start(*counting.network.initial()))
    assert counting.gradients == {"mime": 2 * LONGEST + 1, "mimelite": LONGEST + 1}.get(name, LONGEST)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("fedprox", "mu", -0.1),
        ("fedavgm", "beta", 1.0),
        ("slowmo", "beta", -0.1),
        ("mime", "beta", 1.0),
        ("feddyn", "lam", -1.0),
        ("fedadam", "beta1", 1.0),
        ("fedadam", "beta2", -0.5),
        ("fedadam", "epsilon", 0.0),
        ("fedavg-cheng", "alpha", 0.0),
        ("scaffold", "server_lr", 0.0),
    ],
)
def test_an_option_out_of_range_is_named(name: str, field: str, value: float) -> None:
    make: Callable[..., object] = METHODS[name]
    with pytest.raises(ValueError, match=f"{field} = {value}"):
        make(**{field: value})
