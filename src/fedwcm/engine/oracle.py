"""What a hook may evaluate: gradients of the mini-batch loss wherever it chooses, and all data of its clients."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, Outputs, Shard
from fedwcm.core.loss import ExplicitLoss, Loss
from fedwcm.core.rng import Purpose
from fedwcm.core.types import Context, GradientOracle, State, Vec
from fedwcm.engine.batches import Augmentation, whole
from fedwcm.engine.forward import Forward, Gradient, Point
from fedwcm.engine.hook_checks import check_losses, check_padding, check_tuple
from fedwcm.engine.training_metrics import TrainingMetrics


class MiniBatchOracle:
    """Gradients on one batch per client.

    A method may evaluate several gradients in a step (SAM, Mime): only the first one updates BatchNorm's
    statistics and the loss's client state, and is recorded as the training loss. All have the same dropout, so
    that they are gradients of one function.
    """

    def __init__(
        self,
        forward: Forward,
        loss: Loss,
        batch: Batch,
        o: State,
        ctx: Context,
        metrics: TrainingMetrics,
        step: int = 0,
    ) -> None:
        self._forward, self._loss, self._batch, self._ctx = forward, loss, batch, ctx
        self._metrics, self._step = metrics, step
        self.state = o
        self._before = o
        self._evaluated = False
        one_by_one = len(ctx.clients) == 1  # models that draw random numbers are not stacked
        self._dropout = _rng_state(batch.inputs.device) if one_by_one else None

    def __call__(self, w: Vec) -> Vec:
        return self.at(w).vector()

    def shifted(self, e: Vec) -> GradientOracle:
        return OracleAt(self, GradientPoint(e))

    def ascended(self, rho: float) -> GradientOracle:
        return OracleAt(self, GradientPoint().ascended(rho))

    def of_classes(self, classes: Tensor) -> Callable[[Vec], Vec]:
        return lambda w: self._of_classes(w, classes)

    def generators(self) -> list[np.random.Generator]:
        return self._ctx.generators(Purpose.STEP, self._step)

    def _of_classes(self, w: Vec, classes: Tensor) -> Vec:
        batch = self._batch
        members = classes.to(w)[batch.labels]
        members = members if batch.weight is None else members * batch.weight
        share = members.sum(dim=-1) / batch.sizes
        return self.scaled_gradient(w, share[:, None], replace(batch, weight=members)).vector()

    def at(self, point: Point) -> Gradient:
        """Return the gradient at a point."""
        return self.scaled_gradient(point, torch.ones_like(self._ctx.lr))

    def ascend(self, w: Vec, rho: float) -> Point:
        """Return the models after a step of length rho up their gradient from `w`."""
        return self._forward.ascend(w, self.at(w), rho)

    def scaled_gradient(self, point: Point, rate: Tensor, part: Batch | None = None) -> Gradient:
        """Return the gradient at a point, each client's multiplied by its own rate `(K, 1)`.

        `part` is the batch with the weights of some of its samples, if not all of them count.
        """
        batch = self._batch if part is None else part
        first, self._evaluated = not self._evaluated, True
        if self._dropout is not None and not first:
            _set_rng_state(self._dropout, self._batch.inputs.device)
        if not isinstance(point, Tensor):
            outputs = point.outputs()
        else:
            outputs = self._forward(point, batch.inputs, track=first)
        loss, o, gradient = differentiate(self._loss, self._forward, outputs, batch, self._before, self._ctx, rate)
        if first:
            self.state = {key: value.detach() for key, value in o.items()}
            self._metrics.add(loss, outputs.logits, batch)
        return gradient


def _rng_state(device: torch.device) -> Tensor:
    """Return the state of the generator that dropout on this device draws from."""
    if device.type == "mps":
        return torch.mps.get_rng_state()
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_rng_state(state: Tensor, device: torch.device) -> None:
    if device.type == "mps":
        torch.mps.set_rng_state(state)
    elif device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


@dataclass(frozen=True, eq=False)
class GradientPoint:
    """Where a gradient is taken, relative to the model: after a shift, then an ascent step of length rho."""

    shift: Vec | None = None
    rho: float = 0.0

    def shifted(self, e: Vec) -> "GradientPoint":
        return GradientPoint(e if self.shift is None else self.shift + e, self.rho)

    def ascended(self, rho: float) -> "GradientPoint":
        if self.rho and rho:
            raise ValueError("the gradient is already taken at an ascended point: SAM cannot be applied twice")
        return GradientPoint(self.shift, rho or self.rho)

    def of(self, w: Vec, oracle: MiniBatchOracle) -> Point:
        """Return this point for the models `w (K, P)`, which may be only the first of the block."""
        w = self.move(w)
        return oracle.ascend(w, self.rho) if self.rho else w

    def move(self, w: Vec) -> Vec:
        """Return the shifted models."""
        if self.shift is None:
            return w
        return w + (self.shift if self.shift.dim() == 1 else self.shift[: len(w)])


@dataclass(frozen=True, eq=False)
class OracleAt:
    """An oracle whose gradients are taken at a point relative to the model."""

    oracle: MiniBatchOracle
    point: GradientPoint

    def __call__(self, w: Vec) -> Vec:
        return self.oracle.at(self.point.of(w, self.oracle)).vector()

    def shifted(self, e: Vec) -> GradientOracle:
        return OracleAt(self.oracle, self.point.shifted(e))

    def ascended(self, rho: float) -> GradientOracle:
        return OracleAt(self.oracle, self.point.ascended(rho))

    def of_classes(self, classes: Tensor) -> Callable[[Vec], Vec]:
        if self.point.rho:
            raise ValueError("of_classes of an ascended gradient is not defined: ascend along the part itself")
        part = self.oracle.of_classes(classes)
        return lambda w: part(self.point.move(w))

    def generators(self) -> list[np.random.Generator]:
        return self.oracle.generators()


def differentiate(
    loss: Loss, forward: Forward, outputs: Outputs, batch: Batch, o: State, ctx: Context, rate: Tensor
) -> tuple[Tensor, State, Gradient]:
    """Return the losses `(K,)`, the client state after them, and the gradient times a rate per client `(K, 1)`.

    A loss with an explicit gradient bypasses autograd, unless a subclass overrides `__call__`.
    """
    if isinstance(loss, ExplicitLoss) and type(loss).__call__ is ExplicitLoss.__call__:
        with torch.no_grad():
            explicit = loss.with_gradient(outputs, batch, ctx)
        pairs = [(value, slope.mul_(rate[..., None])) for value, slope in explicit.by_outputs(outputs)]
        return explicit.loss, o, forward.backward(*pairs)
    values, o = check_tuple(loss.__call__, loss(outputs, batch, o, ctx), "losses", "client state")
    check_losses(loss, values, len(rate))
    if ctx.round == 0 and batch.weight is not None:  # a wrong loss is wrong at once: no need to check every round
        check_padding(loss, values, outputs, batch.weight)
    return values, o, forward.backward((values, rate[:, 0]))


CHUNK = 256
"""Samples per client in a forward pass over all of its data; affects memory only."""


class BlockData:
    """All data of a block of clients; nothing here trains or updates buffers."""

    def __init__(
        self,
        shards: Sequence[Shard],
        forward: Forward,
        loss: Loss,
        state: State,
        ctx: Context,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._shards, self._forward, self._loss, self._state, self._ctx = shards, forward, loss, state, ctx
        self._augmentation = augmentation

    def batches(self) -> Iterator[Batch]:
        samples = int(self._ctx.clients.samples[0])
        alone = bool(self._forward.network.buffers) and samples > CHUNK and samples % CHUNK == 1
        return whole(self._shards, CHUNK + 1 if alone else CHUNK)  # BatchNorm cannot take one sample by itself

    def outputs(self, w: Vec, batch: Batch) -> Outputs:
        with torch.no_grad():
            return self._forward(w, batch.inputs, track=False)

    def loss(self, w: Vec) -> Tensor:
        total = w.new_zeros(len(w))
        with torch.no_grad():
            for batch in self.batches():
                loss, _ = self._loss(self.outputs(w, batch), batch, self._state, self._ctx)
                total += loss * _samples(batch)
        return total / self._sizes(w)

    def gradient(self, w: Vec) -> Vec:
        total = torch.zeros_like(w)
        for batch in self._augment():
            outputs = self._forward(w, batch.inputs, track=False)
            rate = _samples(batch).to(w.dtype)[:, None]
            _, _, gradient = differentiate(self._loss, self._forward, outputs, batch, self._state, self._ctx, rate)
            gradient.add_to(total)
        return total / self._sizes(w)[:, None]

    def _sizes(self, w: Vec) -> Tensor:
        return torch.as_tensor(self._ctx.clients.samples, dtype=w.dtype, device=w.device)

    def _augment(self) -> Iterator[Batch]:
        """Return all samples, each transformed once: mini-batches are, and have to estimate their mean."""
        if self._augmentation is None:
            yield from self.batches()
            return
        drawn = [
            self._augmentation.draw(rng, 1, len(shard))[0]
            for rng, shard in zip(self._ctx.generators(Purpose.PROBE_AUGMENT), self._shards, strict=True)
        ]
        draws = torch.zeros((len(drawn), max(map(len, drawn)), drawn[0].shape[-1]), dtype=torch.int64)
        for k, draw in enumerate(drawn):
            draws[k, : len(draw)] = torch.from_numpy(draw)
        start = 0
        for batch in self.batches():
            chosen = draws[:, start : start + batch.labels.shape[1]].to(batch.inputs.device)
            start += batch.labels.shape[1]
            inputs = self._augmentation.apply(batch.inputs, chosen)
            yield Batch(inputs, batch.labels, batch.weight, batch.rows, batch.store)


def _samples(batch: Batch) -> Tensor:
    """Return each client's samples in this batch without padding, possibly none: `(K,)`."""
    return batch.sizes if batch.weight is None else batch.weight.sum(dim=-1)
