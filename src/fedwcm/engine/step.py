"""The local step: w ← w − lr·(clip(v) + decay·w), with v the method's direction.

There are two implementations. If the direction is affine in the gradient and the model (`fast/trace.py`) and
nothing is clipped, all coefficients are computed once per round and the gradient is added directly to the models.
Otherwise the direction is computed at every step.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch

from fedwcm.core.method import Method
from fedwcm.core.types import Context, State, Vec
from fedwcm.engine.fast.affine_step import AffineDirection, AffineStep, BlockDirection
from fedwcm.engine.fast.trace import trace_direction
from fedwcm.engine.oracle import MiniBatchOracle

Step: TypeAlias = Callable[[Vec, MiniBatchOracle, State, Context], State]
"""Updates the models of a block in place, and returns the method's client state after the step."""

Direction: TypeAlias = Callable[[Vec, MiniBatchOracle, State, Context], tuple[Vec, State]]


def local_step(method: Method, c: State, ctx: Context, decay: float, clip: float | None) -> Step:
    """Return the implementation of this round's steps."""
    affine = trace_direction(method, c, ctx)
    if affine is None:
        return partial(_eager_step, method.direction, decay, clip)
    if clip is None:
        return partial(_fused_step, affine, AffineStep.along(affine, ctx.lr, decay))
    return partial(_eager_step, partial(_affine_direction, affine, BlockDirection.of(affine)), decay, clip)


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
    direction: Direction,
    decay: float,
    clip: float | None,
    w: Vec,
    grad: MiniBatchOracle,
    c: State,
    ctx: Context,
) -> State:
    v, c = direction(w, grad, c, ctx)
    rate = ctx.lr
    if decay:
        w.mul_(1.0 - decay * rate)
    if clip is not None:
        norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        rate = rate * (clip / norm.clamp(min=clip))
    w.addcmul_(v, rate, value=-1.0)
    return c
