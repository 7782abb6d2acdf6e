"""The short way of a local step, gradients added to the models at once, ends where the long way does."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.core.method import Method
from fedwcm.core.types import Context, GradientOracle, State, Vec
from fedwcm.engine.fast.affine_step import Blend, Move
from fedwcm.engine.forward import DenseGradient
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg

from ..factories import Scripted, clusters, local_training, mlp, play, simulation
from ..specimens import the_long_way

K, P = 3, 7
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-14}
SHORT = sorted(name for name in METHODS if METHODS[name].direction is Method.direction)


def numbers(*shape: int, seed: int) -> Vec:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


BLENDS = {
    "gradient": Blend(),
    "scaled": Blend(0.3),
    "shifted": Blend(shift=numbers(P, seed=1)),
    "each shifted": Blend(0.3, numbers(K, P, seed=1)),
    "pulled": Blend(pull=numbers(K, 1, seed=2)),
    "all of it": Blend(0.3, numbers(K, P, seed=1), numbers(K, 1, seed=2)),
}


@pytest.mark.parametrize("blend", BLENDS.values(), ids=BLENDS)
@pytest.mark.parametrize("decay", [0.0, 0.7])
@pytest.mark.parametrize("rates", [[0.1, 0.1, 0.1], [0.1, 0.2, 0.05]], ids=["one rate", "three rates"])
@pytest.mark.parametrize("active", [K, 2])
def test_a_move_is_a_step_along_the_blend(blend: Blend, decay: float, rates: list[float], active: int) -> None:
    w, g = numbers(K, P, seed=3)[:active], numbers(K, P, seed=4)[:active]
    lr = torch.tensor(rates, dtype=torch.float64)[:, None]
    some = blend.first(active)
    v = some.scale * g
    v = v if some.shift is None else v + some.shift
    v = v if some.pull is None else v + some.pull * w
    torch.testing.assert_close(some.of(g.clone(), w), v, **EXACT)
    move, moved = Move.along(blend, lr, decay).first(active), w.clone()
    move(moved, DenseGradient(g * move.rate))
    torch.testing.assert_close(moved, w - lr[:active] * (v + decay * w), **EXACT)


def test_a_shift_that_all_share_stays_one_vector_if_their_rates_are_the_same() -> None:
    blend = BLENDS["shifted"]
    same, different = (torch.tensor(rates)[:, None] for rates in ([0.1, 0.1], [0.1, 0.2]))
    shared, own = Move.along(blend, same, 0.0).offset, Move.along(blend, different, 0.0).offset
    assert shared is not None
    assert own is not None
    assert (len(shared), len(own)) == (1, 2)


def trained(method: Method, **options: Any) -> list[Vec]:
    data = clusters()
    training = local_training(method, data.federation, mlp(), **options)
    cohorts = Scripted([[0, 2], [1, 2, 4], [0, 1, 3]])
    engine = simulation(training, data.federation, participation=cohorts, block=4 if options["stacked"] else 1)
    after, _ = play(engine, 3)[-1]
    return [after.x, *(value for _, value in sorted(after.method.items()) if value.is_floating_point())]


@pytest.mark.parametrize("name", [name for name in SHORT if name != "clip2fl"])  # CReFF with a teacher's file
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_every_method_s_short_way_ends_where_the_long_way_does(
    name: str, stacked: bool, weight_decay: float
) -> None:
    kind = METHODS[name]
    options = {"stacked": stacked, "weight_decay": weight_decay}
    for short, long in zip(trained(kind(), **options), trained(the_long_way(kind)(), **options), strict=True):
        torch.testing.assert_close(short, long, rtol=1e-9, atol=1e-12)


def test_most_methods_take_the_short_way() -> None:
    assert {"fedavg", "fedcm", "fedwcm", "fedwcm-x", "scaffold", "feddyn", "fedprox", "fedsam"} <= set(SHORT)
    assert not {"mime", "fedsmoo", "fedwmsam"} & set(SHORT)


@dataclass(frozen=True, kw_only=True)
class Signs(FedAvg):
    """A direction that no blend can express."""

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w).sign(), c


def test_a_direction_of_one_s_own_is_what_a_step_goes_along() -> None:
    data = clusters()
    training = local_training(Signs(), data.federation, mlp(), epochs=1, batch_size=100)
    engine = simulation(training, data.federation, participation=Scripted([[0]]), lr=0.25)
    x, buffers = training.forward.network.initial()
    moved = engine.play(engine.start(x, buffers))[0].x - x
    torch.testing.assert_close(moved.abs(), torch.full_like(x, 0.25), rtol=1e-9, atol=0)


def test_clipping_and_a_direction_of_one_s_own_take_the_long_way() -> None:
    federation = clusters().federation
    ways = [(FedAvg(), None), (FedAvg(), 1.0), (Signs(), None)]
    found = [local_training(method, federation, mlp(), clip=clip)._linear for method, clip in ways]
    assert found == [True, False, False]
