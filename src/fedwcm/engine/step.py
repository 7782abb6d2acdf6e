"""The local step of a client's optimizer along v, the method's direction: for SGD w ← w − lr·(clip(v) + decay·w).

There are two implementations. If the direction is affine in the gradient and the model (`fast/trace.py`) and the
optimizer is SGD without momentum or clipping, all coefficients are computed once per round and the gradient is
added directly to the models. Otherwise the direction is computed at every step and given to the optimizer's rule.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from fedwcm.core.method import Method
from fedwcm.core.types import Context, State, Vec
from fedwcm.engine.fast.affine_step import AffineDirection, AffineStep, BlockDirection
from fedwcm.engine.fast.trace import trace_direction
from fedwcm.engine.hook_checks import check_tuple
from fedwcm.engine.optimizer import OptimizerOptions
from fedwcm.engine.oracle import MiniBatchOracle
from fedwcm.engine.update_rules import UpdateRule, update_rule

Step: TypeAlias = Callable[[Vec, MiniBatchOracle, State, Context], State]
"""Updates the models of a block in place, and returns the method's client state after the step."""

Direction: TypeAlias = Callable[[Vec, MiniBatchOracle, State, Context], tuple[Vec, State]]


def local_step(method: Method, c: State, ctx: Context, optimizer: OptimizerOptions) -> Step:
    """Return the implementation of this round's steps."""
    # Adam divides by the size of a direction, and so would magnify what multiplying out leaves of a zero.
    affine = trace_direction(method, c, ctx) if optimizer.optimizer == "sgd" else None
    if affine is not None and optimizer.plain:
        step = AffineStep.along(affine, ctx.lr, ctx.common_lr, optimizer.weight_decay)
        return partial(_fused_step, affine, step)
    direction: Direction = method.direction
    if affine is not None:
        direction = partial(_affine_direction, affine, BlockDirection.of(affine))
    return partial(_eager_step, direction, update_rule(optimizer))


def _fused_step(
    affine: AffineDirection, step: AffineStep, w: Vec, grad: MiniBatchOracle, c: State, ctx: Context
) -> State:
    active = len(w)
    step.first(active)(w, grad.scaled(affine.point.of(w, grad), step.rate[:active]))
    return c


def _affine_direction(
    affine: AffineDirection, direction: BlockDirection, w: Vec, grad: MiniBatchOracle, c: State, ctx: Context
) -> tuple[Vec, State]:
    return direction(grad.at(affine.point.of(w, grad)).vector(), w), c


def _eager_step(
    direction: Direction, rule: UpdateRule, w: Vec, grad: MiniBatchOracle, c: State, ctx: Context
) -> State:
    v, c = check_tuple(direction, direction(w, grad, c, ctx), "direction", "client state")
    rule(w, v, ctx.lr)
    return c
