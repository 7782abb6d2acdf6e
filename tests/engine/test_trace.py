"""The tracer's contract: the fused path of a local step ends where stepping eagerly does, for every method."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.core.method import Method
from fedwcm.core.types import Context, GradientOracle, State, Vec
from fedwcm.engine.fast.trace import trace_direction
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedsmoo import FedSMOO
from fedwcm.methods.mime import Mime
from fedwcm.methods.sam import SharpnessAware

from ..factories import Scripted, clusters, make_rounds, make_trainer, mlp, run_rounds
from ..specimens import the_long_way

AFFINE = sorted(
    set(METHODS) - {"mime", "fedsmoo", "fedwmsam", "fedetf", "ditto", "pfedme", "fedrep", "imbsam", "clip2fl"}
)
"""CLIP2FL is left out because it needs a teacher's file; it is CReFF otherwise."""


def trained(method: Method, **options: Any) -> list[Vec]:
    """The model and the server state after three rounds."""
    data = clusters()
    trainer = make_trainer(method, data.federation, mlp(), **options)
    cohorts = Scripted([[0, 2], [1, 2, 4], [0, 1, 3]])
    engine = make_rounds(trainer, data.federation, participation=cohorts, block=4 if options.get("stacked") else 1)
    after, _ = run_rounds(engine, 3)[-1]
    return [after.x, *(value for _, value in sorted(after.method.items()) if value.is_floating_point())]


@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize(
    ("stacked", "weight_decay", "clip"), [(False, 0.0, None), (True, 0.3, None), (True, 0.3, 0.05)]
)
def test_every_method_ends_where_eager_steps_do(
    name: str, stacked: bool, weight_decay: float, clip: float | None
) -> None:
    kind = METHODS[name]
    options = {"stacked": stacked, "weight_decay": weight_decay, "clip": clip}
    for fused, eager in zip(trained(kind(), **options), trained(the_long_way(kind)(), **options), strict=True):
        torch.testing.assert_close(fused, eager, rtol=1e-9, atol=1e-12)


def context(method: Method) -> tuple[State, Context]:
    """A client state and a context of three clients, filled with numbers, as the method's first step sees them."""
    data = clusters()
    trainer = make_trainer(method, data.federation, mlp())
    ids = np.array([2, 4, 0])
    rounds = make_rounds(trainer, data.federation)
    start = rounds.start(*trainer.forward.network.initial())
    clients = trainer.clients(ids, [data.federation.shard(int(k)) for k in ids])
    c = {key: torch.rand_like(value) for key, value in method.init_client(start.x, clients).items()}
    s = {**start.method, "next": start.x} if isinstance(method, Mime) else start.method
    sent = trainer.context(clients, _broadcast(start.x, method.broadcast(s)))
    return c, sent


def _broadcast(x: Vec, message: State) -> Any:
    from fedwcm.engine.client import Broadcast

    return Broadcast(1, x, x[:0], message, 0.1)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "clip2fl"])
def test_which_methods_are_affine(name: str) -> None:
    method = METHODS[name]()
    assert (trace_direction(method, *context(method)) is not None) == (name in AFFINE)


Hook = Callable[[Vec, GradientOracle, State, Context], Vec]


@dataclass(frozen=True, kw_only=True)
class By(FedAvg):
    """A method whose direction is a given function."""

    hook: Hook

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return self.hook(w, grad, c, ctx), c


FUSED: dict[str, Hook] = {
    "scaled": lambda w, grad, c, ctx: 0.3 * grad(w),
    "divided": lambda w, grad, c, ctx: grad(w) / 4.0,
    "by a tensor": lambda w, grad, c, ctx: torch.tensor(0.3, dtype=torch.float64) * grad(w),
    "by numpy": lambda w, grad, c, ctx: np.float64(0.3) * grad(w),
    "per client": lambda w, grad, c, ctx: ctx.lr * grad(w) + w * ctx.lr,
    "shifted": lambda w, grad, c, ctx: ctx.x + grad(w),
    "shifted from the left": lambda w, grad, c, ctx: ctx.x - grad(w) * -1.0,
    "each shifted": lambda w, grad, c, ctx: grad(w) + ctx.x.expand(len(w), -1),
    "pulled": lambda w, grad, c, ctx: grad(w) + 0.1 * (w - ctx.x),
    "pulled, order reversed": lambda w, grad, c, ctx: grad(w) - 0.1 * (ctx.x - w),
    "negated": lambda w, grad, c, ctx: -(-1.0 * grad(w)),
    "torch.add": lambda w, grad, c, ctx: torch.add(ctx.x, grad(w), alpha=0.5),
    "torch.sub": lambda w, grad, c, ctx: torch.sub(grad(w), ctx.x, alpha=0.5),
    "torch.mul": lambda w, grad, c, ctx: torch.mul(grad(w), 0.5),
    "at a shifted point": lambda w, grad, c, ctx: grad(w + 0.2 * ctx.x),
    "shifted oracle": lambda w, grad, c, ctx: grad.shifted(0.2 * ctx.x)(w),
    "ascended": lambda w, grad, c, ctx: grad.ascended(0.1)(w) + 0.1 * w,
    "ascended and shifted": lambda w, grad, c, ctx: grad.ascended(0.1).shifted(0.2 * ctx.x)(w),
}

EAGER: dict[str, Hook] = {
    "sign": lambda w, grad, c, ctx: grad(w).sign(),
    "in place": lambda w, grad, c, ctx: grad(w).mul_(0.5),
    "two gradients": lambda w, grad, c, ctx: grad(w) - grad(ctx.x.expand_as(w)) + grad(w),
    "product with the model": lambda w, grad, c, ctx: grad(w) * w,
    "product with a vector": lambda w, grad, c, ctx: grad(w) * ctx.x,
    "elsewhere": lambda w, grad, c, ctx: grad(2.0 * w),
    "a number added": lambda w, grad, c, ctx: grad(w) + 1.0,
    "a part of it": lambda w, grad, c, ctx: torch.cat([grad(w)[:, :3], w[:, 3:]], dim=1),
    "a decision": lambda w, grad, c, ctx: grad(w) if bool((w > -1e9).all()) else w,
    "normed": lambda w, grad, c, ctx: grad(w) / torch.linalg.vector_norm(w),
    "a power": lambda w, grad, c, ctx: grad(w) ** 1,
}


@pytest.mark.parametrize("name", FUSED)
def test_affine_directions_are_recognised_and_end_where_eager_steps_do(name: str) -> None:
    method = By(hook=FUSED[name])
    assert trace_direction(method, *context(method)) is not None
    for fused, eager in zip(
        trained(method, stacked=True),
        trained(the_long_way(By)(hook=FUSED[name]), stacked=True),  # type: ignore[call-arg]
        strict=True,
    ):
        torch.testing.assert_close(fused, eager, rtol=1e-9, atol=1e-12)


def test_random_numbers_are_drawn_at_every_step_and_none_by_the_tracer() -> None:
    method = By(hook=lambda w, grad, c, ctx: grad(w) + torch.randn(w.shape, dtype=w.dtype))
    c, ctx = context(method)
    before = torch.get_rng_state()
    assert trace_direction(method, c, ctx) is None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", EAGER)
def test_anything_else_is_asked_at_every_step(name: str) -> None:
    method = By(hook=EAGER[name])
    assert trace_direction(method, *context(method)) is None
    for one, other in zip(
        trained(method, stacked=True),
        trained(the_long_way(By)(hook=EAGER[name]), stacked=True),  # type: ignore[call-arg]
        strict=True,
    ):
        assert torch.equal(one, other)


@dataclass(frozen=True, kw_only=True)
class Remembering(FedAvg):
    """Affine, but with a client state that changes at every step."""

    def init_client(self, x: Vec, clients: Any) -> State:
        return {"steps": x.new_zeros(len(clients), 1)}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w), {"steps": c["steps"] + 1}


def test_a_client_state_that_changes_at_every_step_makes_steps_eager() -> None:
    assert trace_direction(Remembering(), *context(Remembering())) is None


def test_an_error_in_a_direction_is_raised_by_the_first_step() -> None:
    def fails(w: Vec, grad: GradientOracle, c: State, ctx: Context) -> Vec:
        raise ArithmeticError("of the method's own")

    with pytest.raises(ArithmeticError, match="of the method's own"):
        trained(By(hook=fails))


@pytest.mark.parametrize("base", [METHODS["fedavg"], METHODS["scaffold"], Mime, FedSMOO, METHODS["fedwmsam"]])
def test_sam_before_any_method_takes_effect(base: type[Method]) -> None:
    kind = dataclass(frozen=True, kw_only=True)(type(f"Sharp{base.__name__}", (SharpnessAware, base), {}))  # type: ignore[var-annotated]
    plain, sharp = trained(base())[0], trained(kind(rho=0.5))[0]
    assert not torch.allclose(plain, sharp, rtol=1e-4)
    if base not in (FedSMOO, METHODS["fedwmsam"]):  # these have a rho of their own, which the mix-in sets too
        torch.testing.assert_close(trained(kind(rho=0.0))[0], plain, rtol=1e-12, atol=1e-14)


@dataclass(frozen=True, kw_only=True)
class Nested(FedAvg):
    """Asks for the ascended gradient of an ascended gradient."""

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad.ascended(0.1).ascended(0.1)(w), c


def test_sam_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be applied twice"):
        trained(Nested())
