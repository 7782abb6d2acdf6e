"""The local training loop: the only one in the package. The simulator and real clients both run it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Clients, Context, Floats, Ints, Point, Population, Report, State, Vec
from fedwcm.engine.batches import Augmentation, Batch, Sampler, Schedule, Shard, local_steps
from fedwcm.engine.fast.affine_step import Gradient, Move
from fedwcm.engine.fast.ascent import AscendedModels
from fedwcm.engine.forward import Forward
from fedwcm.engine.local_data import LocalData
from fedwcm.engine.training_metrics import TrainingMetrics

Task = Literal["probe", "train"]

OBJECTIVE = "objective/"
"""Prefix of the objective's keys in a client's state, beside the method's own."""


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server sends to the clients of a round."""

    round: int
    x: Vec
    buffers: Vec
    message: State
    base_lr: float


@dataclass(frozen=True, eq=False)
class ClientUpdates:
    """What clients send back, and what each keeps; one row for each of those that answered."""

    ids: Ints
    upload: State
    report: Report
    state: State
    learning_rates: Floats
    loss: Floats
    accuracy: Floats


class MiniBatchOracle:
    """The oracle of one local step. Its first evaluation is the one that statistics and state come from.

    A method may ask for several gradients in a step (SAM, Mime): only the first one updates BatchNorm's
    statistics and the objective's state, and counts as the training loss.
    """

    def __init__(
        self, forward: Forward, objective: Loss, batch: Batch, o: State, ctx: Context, tally: TrainingMetrics
    ) -> None:
        self._forward, self._objective, self._batch, self._ctx = forward, objective, batch, ctx
        self._tally = tally
        self.state = o
        self._before = o
        self._asked = False

    def __call__(self, w: Point) -> Vec:
        return self._slopes(w).vector()

    def uphill(self, w: Vec, rho: float) -> Point:
        return self._forward.uphill(w, self._slopes(w), rho)

    def _slopes(self, w: Point) -> Gradient:
        return self.times(torch.ones_like(self._ctx.lr), w)

    def times(self, rate: Tensor, w: Point) -> Gradient:
        """The gradient at `w`, each client's times its own rate `(K, 1)`."""
        first, self._asked = not self._asked, True
        view = w.view() if isinstance(w, AscendedModels) else self._forward(w, self._batch.inputs, track=first)
        known = self._objective.closed_form(view, self._batch, self._ctx)
        if known is None:
            loss, o = self._objective.loss(view, self._batch, self._before, self._ctx)
            slopes = self._forward.backward(loss, rate[:, 0])
        else:
            (loss, by_logits), o = known, self._before
            slopes = self._forward.backward(view.logits, by_logits.mul_(rate[..., None]))
        if first:
            self.state = {key: value.detach() for key, value in o.items()}
            self._tally.add(loss, view.logits, self._batch)
        return slopes


@dataclass(frozen=True, eq=False)
class ClientTrainer:
    """How clients train: everything about it that stays the same over a run."""

    method: Method
    objective: Loss
    sampler: Sampler
    augmentation: Augmentation | None
    forward: Forward
    population: Population
    weight_decay: float
    clip: float | None
    seed: int

    def clients(self, ids: Ints, shards: Sequence[Shard]) -> Clients:
        """What each client of a block knows of itself."""
        samples = np.array([len(shard) for shard in shards])
        counts = np.stack([np.bincount(s.labels, minlength=self.population.classes) for s in shards])
        return Clients(ids, samples, counts, self.steps(samples))

    def steps(self, samples: Ints) -> Ints:
        """The local steps of clients with so many samples."""
        return local_steps(samples, self.population.epochs, self.population.batch_size)

    def initial_state(self, clients: Clients, x: Vec) -> State:
        """The state of clients that take part for the first time."""
        own = self.objective.init_client(clients, self.population)
        state = {**self.method.init_client(x, clients), **{OBJECTIVE + k: v for k, v in own.items()}}
        return {key: value.to(x if value.is_floating_point() else x.device) for key, value in state.items()}

    def run(self, task: Task, ids: Ints, shards: Sequence[Shard], state: State, sent: Broadcast) -> ClientUpdates:
        """Let a block of clients, ordered longest first, do their part of a phase of the round."""
        work = self.train if task == "train" else self.probe
        return work(ids, shards, state, sent)

    def probe(self, ids: Ints, shards: Sequence[Shard], state: State, sent: Broadcast) -> ClientUpdates:
        """The first phase of a round, for methods that have one: an upload from all local data at `x`."""
        ctx = self._context(self.clients(ids, shards), sent)
        self.forward.start(sent.x, sent.buffers)
        _, o = _split(state)
        with self._torch_rng(ctx):
            upload = self.method.probe(LocalData(shards, self.forward, self.objective, o, ctx), ctx)
        nothing = np.zeros(len(ids))
        return ClientUpdates(ids, upload, {}, state, ctx.learning_rates, nothing, nothing)

    def train(self, ids: Ints, shards: Sequence[Shard], state: State, sent: Broadcast) -> ClientUpdates:
        """Train a block of clients, ordered longest first, from the same received model."""
        ctx = self._context(self.clients(ids, shards), sent)
        ctx = replace(ctx, learning_rates=self.method.local_lr(ctx))
        c, o = _split(state)
        self.forward.start(sent.x, sent.buffers)
        with self._torch_rng(ctx):
            local = LocalData(shards, self.forward, self.objective, o, ctx)
            prepared = {**self.objective.prepare(local, ctx), **self.method.prepare(c, ctx)}
            ctx = replace(ctx, prepared=prepared)
            ctx = replace(ctx, blend=self.method.blend(c, ctx))
            w = sent.x.repeat(len(ids), 1)
            tally = TrainingMetrics(len(ids))
            c, o = self._descend(w, c, o, ctx, self._schedule(shards, ctx), tally)
        upload, report, c = self.method.finish(w, c, ctx)
        if len(sent.buffers):
            upload = {**upload, "buffers": self.forward.buffers()}
        kept = {**c, **{OBJECTIVE + key: value for key, value in o.items()}}
        return ClientUpdates(ids, upload, report, kept, ctx.learning_rates, *tally.means(ctx.clients.steps))

    def _descend(
        self, w: Vec, c: State, o: State, ctx: Context, schedule: Schedule, tally: TrainingMetrics
    ) -> tuple[State, State]:
        """Take every local step, changing `w` in place; the method's and the objective's state after it."""
        move = Move.along(ctx.blend, ctx.lr, self.weight_decay) if self._linear else None
        for active, batch in schedule:
            now, here = ctx.first(active), w[:active]
            grad = MiniBatchOracle(self.forward, self.objective, batch, _rows(o, active), now, tally)
            if move is None:
                c = _replace_rows(c, self._step(here, grad, _rows(c, active), now))
            else:
                at = self.method.gradient_at(here, grad, _rows(c, active), now)
                move.first(active)(here, grad.times(move.rate[:active], at))
            o = _replace_rows(o, grad.state)
        return c, o

    @property
    def _linear(self) -> bool:
        """Whether a step is linear in its gradient, which can then be added to the models at once."""
        return self.clip is None and type(self.method).direction is Method.direction

    def _step(self, w: Vec, grad: MiniBatchOracle, c: State, ctx: Context) -> State:
        """w ← w − lr·(clip(v) + decay·w), in place: the block's models belong to this loop alone."""
        v, c = self.method.direction(w, grad, c, ctx)
        rate = ctx.lr
        if self.weight_decay:
            w.mul_(1.0 - self.weight_decay * rate)
        if self.clip is not None:
            norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
            rate = rate * (self.clip / norm.clamp(min=self.clip))
        w.addcmul_(v, rate, value=-1.0)
        return c

    def _schedule(self, shards: Sequence[Shard], ctx: Context) -> Schedule:
        epochs, size = self.population.epochs, self.population.batch_size
        orders, draws = [], []
        for shard, client, steps in zip(shards, ctx.clients.ids, ctx.clients.steps, strict=True):
            rng = generator(self.seed, Purpose.BATCHES, ctx.round, int(client))
            labels = shard.labels
            orders.append([self.sampler.epoch(labels, rng) for _ in range(epochs)])
            if self.augmentation is not None:
                rng = generator(self.seed, Purpose.AUGMENT, ctx.round, int(client))
                draws.append(self.augmentation.draw(rng, int(steps), size))
        return Schedule(shards, orders, size, draws, self.augmentation)

    def _context(self, clients: Clients, sent: Broadcast) -> Context:
        rates = np.full(len(clients), sent.base_lr)
        return Context(
            self.seed, sent.round, sent.x, sent.message, self.population, clients, sent.base_lr, rates, {}
        )

    @contextmanager
    def _torch_rng(self, ctx: Context) -> Iterator[None]:
        """Dropout draws from torch's global generator: lend it the client's address while it trains.

        Stacked clients draw nothing: their models have no randomness of their own.
        """
        if len(ctx.clients) > 1:
            yield
            return
        rng = generator(self.seed, Purpose.DROPOUT_LAYERS, ctx.round, int(ctx.clients.ids[0]))
        with torch.random.fork_rng([ctx.x.device] if ctx.x.is_cuda else []):
            torch.manual_seed(int(rng.integers(2**63)))
            yield


def _split(state: State) -> tuple[State, State]:
    """The method's and the objective's part of a client's state."""
    c = {key: value for key, value in state.items() if not key.startswith(OBJECTIVE)}
    o = {key.removeprefix(OBJECTIVE): value for key, value in state.items() if key.startswith(OBJECTIVE)}
    return c, o


def _rows(state: State, k: int) -> State:
    return {key: value[:k] for key, value in state.items()}


def _replace_rows(state: State, active: State) -> State:
    """The state in which the first rows, those of the clients still active, are replaced."""
    return {
        key: new if len(new) == len(state[key]) else torch.cat([new, state[key][len(new) :]])
        for key, new in active.items()
    }
