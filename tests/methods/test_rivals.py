"""Laws of published rivals: what their own part does, and when they are FedAvg."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import fedwcm
from fedwcm.config.schema import Component, Config
from fedwcm.core.method import Method
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Cohort, Context, Floats, GradientOracle, Ints, State, Uploads, Vec
from fedwcm.engine.network import Network
from fedwcm.engine.uploads import UploadRows
from fedwcm.flower.server.deployment import _require_compatible
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedexp import FedExP
from fedwcm.methods.fednova import FedNova
from fedwcm.methods.fedsam import FedSAM
from fedwcm.methods.imbsam import ImbSAM, rare_classes
from fedwcm.methods.power_of_choice import PowerOfChoice
from fedwcm.methods.q_ffl import QFFL
from fedwcm.testing import check_method
from tests.factories import clusters, make_rounds, make_trainer, mlp, run_rounds


def cohort(samples: list[int], path: list[float] | None = None, round_: int = 1) -> Any:
    """What the server knows of clients with so many samples and such paths."""
    sizes, paths = np.array(samples), np.array(path or samples)
    return SimpleNamespace(samples=sizes, path=paths, round=round_, limit_shares=lambda weights: weights)


def finish(method: Any, deltas: NDArray[np.float64], **context: Any) -> UploadRows:
    """The uploads of clients that end at these increments from 0."""
    ctx = SimpleNamespace(x=torch.zeros(deltas.shape[1], dtype=torch.float64), **context)
    return UploadRows(method.finish(torch.from_numpy(deltas), {}, ctx)[0])


def step(method: Any, deltas: NDArray[np.float64], **context: Any) -> Tensor:
    """Where the server goes from 0, in round 2, given these increments of equally large clients."""
    x = torch.zeros(deltas.shape[1], dtype=torch.float64)
    uploads = finish(method, deltas, **context)
    end: Tensor = method.update(x, {"previous": x}, uploads, cohort([10] * len(deltas)))[0]
    return end


def test_fednova_weighs_directions_and_keeps_the_mean_path() -> None:
    weights = FedNova().weights({}, cohort([10, 30], path=[0.1, 0.6]))
    assert weights * [0.1, 0.6] == pytest.approx(np.array([0.25, 0.75]) * (0.25 * 0.1 + 0.75 * 0.6))
    assert FedNova().weights({}, cohort([10, 30], path=[0.2, 0.2])) == pytest.approx([0.25, 0.75])


def test_fedexp_extrapolates_orthogonal_increments_and_no_others() -> None:
    tiny = FedExP(epsilon=1e-12)
    alike, apart = np.ones((6, 6)), np.eye(6)
    assert step(tiny, alike).numpy() == pytest.approx(alike.mean(axis=0))
    assert step(tiny, apart).numpy() == pytest.approx(3.0 * apart.mean(axis=0))  # m/2 for m orthogonal increments
    # The mean increment has the squared norm 1/6: with as much again in epsilon, half of it is left.
    assert step(FedExP(epsilon=1 / 6), apart).numpy() == pytest.approx(1.5 * apart.mean(axis=0))


def test_fedexp_evaluates_the_mean_of_the_last_two_models() -> None:
    method, x = FedExP(), torch.zeros(3)
    uploads = UploadRows({"delta": torch.ones(1, 3), "square": torch.full((1, 1), 3.0)})
    first, s = method.update(x, method.init(x, None), uploads, cohort([5], round_=0))  # type: ignore[arg-type]
    assert torch.equal(method.eval_params(first, s), first)
    second, s = method.update(first, s, uploads, cohort([5], round_=1))
    assert torch.equal(method.eval_params(second, s), (first + second) / 2)


def test_q_ffl_turns_to_the_client_with_the_larger_loss() -> None:
    deltas, losses = np.eye(2), torch.tensor([[1.0], [4.0]], dtype=torch.float64)
    context = {"prepared": {"loss_at_x": losses}, "lr": torch.full((2, 1), 0.1, dtype=torch.float64)}
    assert step(QFFL(q=0.0), deltas, **context).numpy() == pytest.approx([0.5, 0.5])
    one, two = (step(QFFL(q=q), deltas, **context) for q in (1.0, 2.0))
    assert float(one[1] / one[0]) == pytest.approx(4.0)
    assert float(two[1] / two[0]) == pytest.approx(16.0)
    assert float(two.norm()) < float(one.norm()) < 0.5 * np.sqrt(2)


def played(method: Method, stacked: bool = True) -> Tensor:
    data = clusters()
    training = make_trainer(method, data.federation, mlp(), stacked=stacked)
    return run_rounds(make_rounds(training, data.federation, block=64 if stacked else 1), 2)[-1][0].x


@pytest.mark.parametrize("stacked", [False, True])
def test_imbsam_is_between_fedavg_and_fedsam(stacked: bool) -> None:
    plain, sharp = played(FedAvg(), stacked), played(FedSAM(rho=0.3), stacked)
    torch.testing.assert_close(played(ImbSAM(rho=0.3, tail_share=0.0), stacked), plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(played(ImbSAM(rho=0.3, tail_share=1.0), stacked), sharp, rtol=1e-5, atol=1e-6)
    between = played(ImbSAM(rho=0.3, tail_share=0.5), stacked)
    assert min(float((between - x).abs().max()) for x in (plain, sharp)) > 1e-4


def test_the_rare_classes_hold_at_most_their_share() -> None:
    prior = np.array([0.5, 0.1, 0.3, 0.1])
    assert rare_classes(prior, 0.2).tolist() == [0, 1, 0, 1]
    assert rare_classes(prior, 0.15).tolist() == [0, 1, 0, 0]
    assert rare_classes(prior, 1.0).tolist() == [1, 1, 1, 1]


@dataclass(frozen=True, kw_only=True)
class Parts(FedAvg):
    """Descends along two parts of the gradient, which are all of it."""

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        one, rest = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 1.0])
        grad(w)
        return grad.of_classes(one)(w) + grad.shifted(torch.zeros_like(w)).of_classes(rest)(w), c


@pytest.mark.parametrize("stacked", [False, True])
def test_the_parts_of_a_gradient_add_up_to_it(stacked: bool) -> None:
    torch.testing.assert_close(played(Parts(), stacked), played(FedAvg(), stacked), rtol=1e-5, atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class PartElsewhere(FedAvg):
    """Descends along a part of the gradient, taken elsewhere: at each client's own distance from its model."""

    shifts_oracle: bool

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        grad(w)
        rows = torch.arange(1.0, len(ctx.clients) + 1)[:, None].to(w)
        shift, one = 0.1 * rows * ctx.x, torch.tensor([1.0, 0.0, 0.0])
        if self.shifts_oracle:  # one row for each client of the block, also when the last ones have finished
            return grad.shifted(shift).of_classes(one)(w), c
        return grad.of_classes(one)(w + shift[: len(w)]), c


@pytest.mark.parametrize("stacked", [False, True])
def test_a_part_of_a_shifted_gradient_is_that_of_shifted_models(stacked: bool) -> None:
    shifted, moved = (played(PartElsewhere(shifts_oracle=how), stacked) for how in (True, False))
    torch.testing.assert_close(shifted, moved, rtol=1e-6, atol=1e-7)
    assert not torch.allclose(shifted, played(Parts(), stacked))


@dataclass(frozen=True, kw_only=True)
class Noisy(FedAvg):
    """Adds a number to every gradient, another one at every step."""

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        noise = torch.tensor([[rng.normal()] for rng in grad.generators()], dtype=w.dtype)
        return torch.where(torch.ones_like(w) > 0, noise, grad(w)), c


def test_random_numbers_have_the_address_of_a_step() -> None:
    torch.testing.assert_close(played(Noisy()), played(Noisy(), stacked=False))
    drawn = {float(generator(1, Purpose.STEP, 2, client, step).random()) for client in (3, 4) for step in range(3)}
    assert len(drawn) == 6


@dataclass(frozen=True, kw_only=True)
class Krum(FedAvg):
    """Takes the increment with the nearest neighbours (Blanchard et al., 2017)."""

    reads_rows: ClassVar[bool] = True
    reads_losses: ClassVar[bool] = True

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        rows = uploads.rows("delta")
        assert len(cohort.losses) == len(rows)
        nearest = torch.cdist(rows, rows).sort(dim=1).values[:, : len(rows) - 1].sum(dim=1).argmin()
        return x + rows[nearest], s


@dataclass(frozen=True, kw_only=True)
class Peeking(FedAvg):
    """Reads single uploads without saying so."""

    door: str = "eye"

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        alone = np.eye(len(cohort.ids))
        doors = {
            "rows": lambda: uploads.rows("delta"),
            "eye": lambda: uploads.sum("delta", alone),
            "turns": lambda: torch.stack([uploads.sum("delta", weights) for weights in alone]),
        }
        return x + doors[self.door]().median(dim=0).values, s


@dataclass(frozen=True, kw_only=True)
class Loudest(FedAvg):
    """Takes the increment of the client with the largest loss."""

    reads_losses: ClassVar[bool] = True

    def weights(self, s: State, cohort: Cohort) -> Floats:
        assert (cohort.losses > 0).all()
        return (cohort.losses == cohort.losses.max()).astype(np.float64)


def test_the_server_sees_the_losses_of_the_clients() -> None:
    data = clusters()
    training = make_trainer(Loudest(), data.federation, mlp())
    record = run_rounds(make_rounds(training, data.federation), 1)[0][1]
    assert record.weights is not None
    assert sorted(record.weights) == [0, 0, 0, 0, 1]
    undeclared = type("Silent", (Loudest,), {"reads_losses": False})
    with pytest.raises(ValueError, match=r"cohort.losses are for methods that declare reads_losses = True"):
        played(undeclared())


def test_single_uploads_are_for_methods_that_declare_it() -> None:
    assert torch.isfinite(played(Krum())).all()
    check_method(Krum)
    for door in ("eye", "turns"):
        with pytest.raises(ValueError, match="Peeking reads single uploads by sums over single clients: it must"):
            played(Peeking(door=door))
    with pytest.raises(ValueError, match=r"Peeking reads single uploads by uploads.rows: it must declare"):
        played(Peeking(door="rows"))


def test_secure_aggregation_refuses_a_method_that_reads_single_uploads() -> None:
    config, network = Config(method=Component("krum")), Network(mlp())
    with pytest.raises(ValueError, match=r"method.name = 'krum' is not possible with flower.secure_aggregation"):
        _require_compatible(config, Krum(), network, True)
    _require_compatible(config, Krum(), network, False)


def test_power_of_choice_asks_the_candidates_with_the_largest_losses() -> None:
    method, samples = PowerOfChoice(candidates=3.0), np.array([10, 10, 10, 10, 0, 10])
    losses, rng = torch.tensor([0.5, -1.0, 2.0, 0.1, 9.0, 0.7]), np.random.default_rng(0)
    assert method.choose({"losses": losses[:4]}, 2, samples[:4], rng).tolist() == [1, 2]  # one never took part
    drawn = {int(PowerOfChoice(candidates=1.0).choose({"losses": losses}, 1, samples, rng)[0]) for _ in range(60)}
    assert drawn == {0, 1, 2, 3, 5}  # at random, by samples


def test_power_of_choice_remembers_the_losses_of_those_who_trained() -> None:
    data = clusters()
    simulated = make_rounds(make_trainer(PowerOfChoice(), data.federation, mlp()), data.federation)
    state, record = run_rounds(simulated, 1)[0]
    assert tuple((state.method["losses"] > 0).nonzero()[:, 0].tolist()) == record.clients
    with pytest.raises(
        ValueError, match=r"participation.sampling = 'balanced' is not allowed: it must be fixed with"
    ):
        fedwcm.run("power-of-choice", dataset="digits", settings={"participation.sampling": "balanced"})


@dataclass(frozen=True, kw_only=True)
class Twice(PowerOfChoice):
    """Asks a client twice."""

    def choose(self, s: State, size: int, samples: Ints, rng: np.random.Generator) -> Ints:
        return np.array([1, 1])


def test_a_choice_that_names_a_client_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Twice.choose returned array\(\[1, 1\]\): it must return different ids"):
        played(Twice())
