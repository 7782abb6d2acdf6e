"""The local step of a client's optimizer along v, the method's direction: for SGD w ← w − lr·(clip(v) + decay·w).

There are two implementations. If the direction is affine in the gradient and the model (`fast/trace.py`) and the
optimizer is SGD without momentum or clipping, all coefficients are computed once per round and the gradient is
added directly to the models. Otherwise the direction is computed at every step and given to the optimizer's rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from fedwcm.core.method import Method
from fedwcm.core.types import Context, State, Vec
from fedwcm.engine.fast.affine_step import AffineDirection, AffineStep, BlockDirection
from fedwcm.engine.fast.trace import trace_direction
from fedwcm.engine.hook_checks import check_tuple, lend
from fedwcm.engine.options import OptimizerOptions
from fedwcm.engine.oracle import MiniBatchOracle


class UpdateRule(Protocol):
    """Updates models in place, along directions `v`, at learning rates `(K, 1)`.

    At every step it is given the first clients of the block, those that are still training.
    """

    def __call__(self, w: Vec, v: Vec, lr: Tensor) -> None: ...


def update_rule(options: OptimizerOptions) -> UpdateRule:
    """Return the rule of an optimizer, with its initial state."""
    if options.optimizer != "sgd":
        return Adam(options)
    return MomentumSGD(options) if options.momentum else SGD(options)


class SGD:
    """w ← w − lr·(clip(v) + decay·w)."""

    def __init__(self, options: OptimizerOptions) -> None:
        self._decay, self._clip = options.weight_decay, options.clip

    def __call__(self, w: Vec, v: Vec, lr: Tensor) -> None:
        if self._decay:
            w.mul_(1.0 - self._decay * lr)
        w.addcmul_(v, lr if self._clip is None else lr * clip_factor(v, self._clip), value=-1.0)


class MomentumSGD:
    """b ← momentum·b + d with d = clip(v) + decay·w; w ← w − lr·b, or lr·(d + momentum·b) for Nesterov."""

    def __init__(self, options: OptimizerOptions) -> None:
        self._options = options
        self._buffer: Vec | None = None

    def __call__(self, w: Vec, v: Vec, lr: Tensor) -> None:
        momentum = self._options.momentum
        if self._buffer is None:
            self._buffer = torch.zeros_like(w)
        d = add_decay(w, clip_direction(v, self._options.clip), self._options.weight_decay)
        b = self._buffer[: len(w)].mul_(momentum).add_(d)
        w.addcmul_(torch.add(d, b, alpha=momentum) if self._options.nesterov else b, lr, value=-1.0)


class Adam:
    """Adam, whose moments include the weight decay, and AdamW, whose moments do not."""

    def __init__(self, options: OptimizerOptions) -> None:
        self._options = options
        self._step = 0
        self._moments: tuple[Vec, Vec] | None = None

    def __call__(self, w: Vec, v: Vec, lr: Tensor) -> None:
        options, (beta1, beta2) = self._options, self._options.betas
        if self._moments is None:
            self._moments = torch.zeros_like(w), torch.zeros_like(w)
        d = clip_direction(v, options.clip)
        if options.optimizer == "adam":
            d = add_decay(w, d, options.weight_decay)
        else:
            w.mul_(1.0 - options.weight_decay * lr)
        self._step += 1
        mean, square = (moment[: len(w)] for moment in self._moments)
        mean.mul_(beta1).add_(d, alpha=1.0 - beta1)
        square.mul_(beta2).addcmul_(d, d, value=1.0 - beta2)
        root = square.sqrt().div_(sqrt(1.0 - beta2**self._step)).add_(options.eps)
        w.addcmul_(torch.div(mean, root, out=root), lr, value=-1.0 / (1.0 - beta1**self._step))


def clip_direction(v: Vec, clip: float | None) -> Vec:
    """Return directions of at most this norm, over all parameters of a client."""
    return v if clip is None else v * clip_factor(v, clip)


def clip_factor(v: Vec, clip: float) -> Tensor:
    """Return the factor, at most 1, that brings each client's direction to at most this norm."""
    norm: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return clip / norm.clamp(min=clip)


def add_decay(w: Vec, v: Vec, decay: float) -> Vec:
    """Return directions with the weight decay added."""
    return torch.add(v, w, alpha=decay) if decay else v


Step: TypeAlias = Callable[[Vec, MiniBatchOracle, State, Context], State]
"""Updates the models of a block in place, and returns the method's client state after the step."""

Direction: TypeAlias = Callable[[Vec, MiniBatchOracle, State, Context], tuple[Vec, State]]


def local_step(method: Method, c: State, ctx: Context, optimizer: OptimizerOptions) -> Step:
    """Return the implementation of this round's steps."""
    # Adam divides by the size of a direction, and so would magnify what multiplying out leaves of a zero.
    affine = trace_direction(method, c, ctx) if optimizer.optimizer == "sgd" else None
    if affine is not None and optimizer.plain:
        return FusedStep(affine, AffineStep.along(affine, ctx.lr, ctx.common_lr, optimizer.weight_decay))
    direction: Direction = method.direction
    if affine is not None:
        direction = partial(_affine_direction, affine, BlockDirection.of(affine))
    return partial(_eager_step, direction, update_rule(optimizer))


@dataclass(frozen=True, eq=False)
class FusedStep:
    """Adds the gradient directly to the models."""

    affine: AffineDirection
    step: AffineStep

    @property
    def is_at_models(self) -> bool:
        """Whether gradients are taken at the models themselves, so that nothing else reads these."""
        return self.affine.point.shift is None and not self.affine.point.rho

    def __call__(self, w: Vec, grad: MiniBatchOracle, c: State, ctx: Context) -> State:
        active = len(w)
        gradient = grad.scaled_gradient(self.affine.point.of(w, grad), self.step.rate[:active])
        self.step.first(active)(w, gradient)
        return c


def _affine_direction(
    affine: AffineDirection, direction: BlockDirection, w: Vec, grad: MiniBatchOracle, c: State, ctx: Context
) -> tuple[Vec, State]:
    return direction(grad.at(affine.point.of(w, grad)).vector(), w), c


def _eager_step(
    direction: Direction, rule: UpdateRule, w: Vec, grad: MiniBatchOracle, c: State, ctx: Context
) -> State:
    with lend(direction, {"w": w}):
        outcome = direction(w, grad, c, ctx)
    v, c = check_tuple(direction, outcome, "direction", "client state")
    rule(w, v, ctx.lr)
    return c
