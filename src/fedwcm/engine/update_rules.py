"""Update rules of the clients' optimizers, for a block of clients. A rule lives for one round."""

from math import sqrt
from typing import Protocol

import torch
from torch import Tensor

from fedwcm.core.types import Vec
from fedwcm.engine.optimizer import OptimizerOptions


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
        d = decayed(w, clipped(v, self._options.clip), self._options.weight_decay)
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
        d = clipped(v, options.clip)
        if options.optimizer == "adam":
            d = decayed(w, d, options.weight_decay)
        else:
            w.mul_(1.0 - options.weight_decay * lr)
        self._step += 1
        mean, square = (moment[: len(w)] for moment in self._moments)
        mean.mul_(beta1).add_(d, alpha=1.0 - beta1)
        square.mul_(beta2).addcmul_(d, d, value=1.0 - beta2)
        root = square.sqrt().div_(sqrt(1.0 - beta2**self._step)).add_(options.eps)
        w.addcmul_(torch.div(mean, root, out=root), lr, value=-1.0 / (1.0 - beta1**self._step))


def clipped(v: Vec, clip: float | None) -> Vec:
    """Return directions of at most this norm, over all parameters of a client."""
    return v if clip is None else v * clip_factor(v, clip)


def clip_factor(v: Vec, clip: float) -> Tensor:
    """Return the factor, at most 1, that brings each client's direction to at most this norm."""
    norm: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return clip / norm.clamp(min=clip)


def decayed(w: Vec, v: Vec, decay: float) -> Vec:
    """Return directions with the weight decay added."""
    return torch.add(v, w, alpha=decay) if decay else v
