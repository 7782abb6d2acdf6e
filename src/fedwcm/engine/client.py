"""The local training loop, used by both the simulator and real clients."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from fedwcm.core.batch import Sampler, Shard
from fedwcm.core.disclosure import Disclosure
from fedwcm.core.loss import Loss
from fedwcm.core.method import (
    ClientStatistics,
    FinalPass,
    LocalPass,
    LocalRates,
    Method,
    OwnStart,
    PersonalModels,
    TwoPhase,
)
from fedwcm.core.rng import ClientGenerators, Purpose, generator
from fedwcm.core.torch_rng import own_torch_generator
from fedwcm.core.types import Clients, Context, Floats, Ints, LeftOut, Population, Report, State, Vec
from fedwcm.engine.batches import Augmentation, Schedule, visits
from fedwcm.engine.forward import Forward
from fedwcm.engine.hook_checks import check_rows, check_tuple, lend
from fedwcm.engine.options import OptimizerOptions
from fedwcm.engine.oracle import BlockData, MiniBatchOracle
from fedwcm.engine.step import FusedStep, local_step
from fedwcm.engine.training_metrics import TrainingMetrics

Task = Literal["probe", "train"]

LOSS = "loss/"
"""Prefix of the loss's keys in a client's state, next to the method's own."""
BUFFERS = "own/buffers"
"""Key of the buffers in the state of a client that keeps its own."""


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server sends to the clients of a round."""

    round: int
    x: Vec
    buffers: Vec
    message: State
    base_lr: float
    max_norm: float | None = None
    """Bound on the norm of an increment, for clients that apply it themselves."""
    recorded: bool = True
    """Whether the accuracy of the clients is asked for, which else is NaN."""
    steps: Ints | None = None
    """Local steps of every client of the run; None for the usual ones."""


@dataclass(frozen=True, eq=False)
class ClientUpdates:
    """What clients send back and what each keeps, one row per client that answered."""

    ids: Ints
    upload: State
    report: Report
    state: State
    learning_rates: Floats
    loss: Floats
    accuracy: Floats
    left_out: Mapping[int, LeftOut] = field(default_factory=dict)
    """Clients whose answer is missing or unusable, with the reason."""

    def select(self, rows: Ints) -> "ClientUpdates":
        """Return only these rows."""
        return replace(
            self,
            ids=self.ids[rows],
            upload={key: value[torch.from_numpy(rows)] for key, value in self.upload.items()},
            report={key: values[rows] for key, values in self.report.items()},
            state={key: value[torch.from_numpy(rows)] for key, value in self.state.items()},
            learning_rates=self.learning_rates[rows],
            loss=self.loss[rows],
            accuracy=self.accuracy[rows],
        )


@dataclass(frozen=True, eq=False)
class ClientTrainer:
    """Local training of clients, with everything that stays the same over a run."""

    method: Method
    loss: Loss
    sampler: Sampler
    augmentation: Augmentation | None
    forward: Forward
    population: Population
    optimizer: OptimizerOptions
    seed: int
    disclosure: Disclosure = field(default_factory=Disclosure)

    def clients(self, ids: Ints, shards: Sequence[Shard]) -> Clients:
        """Return what each client of a block knows about itself."""
        labels, classes = [shard.labels for shard in shards], self.population.classes
        samples = np.array(list(map(len, labels)))
        cells = np.concatenate(labels) + np.repeat(np.arange(len(shards)) * classes, samples)
        counts = np.bincount(cells, minlength=len(shards) * classes).reshape(-1, classes)
        steps = self.population.local_steps(samples)
        return Clients(ids, samples, counts, steps, self.forward.network.layout)

    def statistics(self, ids: Ints, counts: Ints) -> Report:
        """Return what clients with these counts report of them, if the method asks for it."""
        if not isinstance(self.method, ClientStatistics):
            return {}
        return self.disclosure.report(self.method, ids, counts, self.population)

    def initial_state(self, clients: Clients, x: Vec, buffers: Vec) -> State:
        """Return the state of clients that take part for the first time."""
        c, o = self.method.init_client(x, clients), self.loss.init_client(clients, self.population)
        check_rows(self.method.init_client, "client state", c, len(clients))
        check_rows(self.loss.init_client, "client state", o, len(clients))
        state = {**c, **{LOSS + key: value for key, value in o.items()}}
        if self._keeps_buffers(buffers):
            state[BUFFERS] = buffers.repeat(len(clients), 1)
        return {key: value.to(x if value.is_floating_point() else x.device) for key, value in state.items()}

    def run(self, task: Task, ids: Ints, shards: Sequence[Shard], state: State, sent: Broadcast) -> ClientUpdates:
        """Run one phase of the round for a block of clients, ordered longest first."""
        work = self.train if task == "train" else self.probe
        with lend(self.method, {"ctx.x": sent.x, **sent.message}):
            return work(ids, shards, state, sent)

    def probe(self, ids: Ints, shards: Sequence[Shard], state: State, sent: Broadcast) -> ClientUpdates:
        """Run the first phase of a round, for methods that have one: an upload from all local data at `x`."""
        assert isinstance(self.method, TwoPhase)
        ctx = self.context(self.clients(ids, shards), sent)
        self.forward.start(sent.x, sent.buffers)
        _, o = _split(state)
        with self._torch_rng(ctx):
            local = BlockData(shards, self.forward, self.loss, o, ctx, self.augmentation)
            upload = self.method.probe(local, ctx)
        check_rows(self.method.probe, "upload", upload, len(ids))
        zeros = np.zeros(len(ids))
        return ClientUpdates(ids, upload, {}, state, ctx.learning_rates, zeros, zeros)

    def train(self, ids: Ints, shards: Sequence[Shard], state: State, sent: Broadcast) -> ClientUpdates:
        """Train a block of clients, ordered longest first, from the same received model."""
        clients = self.clients(ids, shards)
        clients = clients if sent.steps is None else replace(clients, steps=sent.steps[ids])
        ctx = self.context(clients, sent)
        c, o = _split(state)
        self.forward.start(sent.x, state[BUFFERS][0] if BUFFERS in state else sent.buffers)
        with self._torch_rng(ctx):
            ctx = self._prepare(shards, o, ctx)
            w = self._starting_models(c, ctx)
            metrics = TrainingMetrics(len(ids), accuracy=sent.recorded)
            c, o = self._descend(w, c, o, ctx, self._schedule(shards, ctx), metrics)
            o, ctx = self._conclude(w, shards, o, ctx)
        outcome = self.method.finish(w, c, ctx)
        upload, report, c = check_tuple(self.method.finish, outcome, "upload", "report", "client state")
        check_rows(self.method.finish, "upload", upload, len(ids))
        check_rows(self.method.finish, "report", report, len(ids), numbers=True)
        check_rows(self.method.finish, "client state", c, len(ids))
        report = {**report, **self.statistics(ids, ctx.clients.counts)}
        if len(sent.buffers):
            upload = {**upload, "buffers": self.forward.buffers()}
        kept = {**c, **{LOSS + key: value for key, value in o.items()}}
        if BUFFERS in state:
            kept[BUFFERS] = self.forward.buffers()
        return ClientUpdates(ids, upload, report, kept, ctx.learning_rates, *metrics.means(ctx.clients.steps))

    def _keeps_buffers(self, buffers: Vec) -> bool:
        return isinstance(self.method, PersonalModels) and self.method.own_buffers and len(buffers) > 0

    def _starting_models(self, c: State, ctx: Context) -> Vec:
        """Return where the clients start, `(K, P)`: by default at the received model."""
        if not isinstance(self.method, OwnStart):
            return ctx.x.repeat(len(ctx.clients), 1)
        w = self.method.start(c, ctx)
        check_rows(self.method.start, "models", {"w": w}, len(ctx.clients))
        return w

    def _prepare(self, shards: Sequence[Shard], o: State, ctx: Context) -> Context:
        """Return the context with what the loss, and then the method, prepares from all local data."""
        local = BlockData(shards, self.forward, self.loss, o, ctx, self.augmentation)
        ctx = replace(ctx, prepared=self.loss.prepare(local, ctx))
        if not isinstance(self.method, LocalPass):
            return ctx
        local = BlockData(shards, self.forward, self.loss, o, ctx, self.augmentation)
        own = self.method.prepare(local, ctx)
        check_rows(self.method.prepare, "preparation", own, len(shards))
        return replace(ctx, prepared={**ctx.prepared, **own})

    def _conclude(self, w: Vec, shards: Sequence[Shard], o: State, ctx: Context) -> tuple[State, Context]:
        """Return what the loss keeps, and the context with what the method finds in all local data at the end."""
        local = BlockData(shards, self.forward, self.loss, o, ctx, self.augmentation)
        if isinstance(self.method, FinalPass):
            conclusion = self.method.conclude(w, local, ctx)
            check_rows(self.method.conclude, "conclusion", conclusion, len(shards))
            ctx = replace(ctx, prepared={**ctx.prepared, **conclusion})
        o = self.loss.finish(w, local, o, ctx)
        check_rows(self.loss.finish, "client state", o, len(shards))
        return o, ctx

    def _descend(
        self, w: Vec, c: State, o: State, ctx: Context, schedule: Schedule, metrics: TrainingMetrics
    ) -> tuple[State, State]:
        """Take all local steps, updating `w` in place; return the final state of the method and of the loss."""
        step = local_step(self.method, c, ctx, self.optimizer)
        active_ctx, has_views = ctx, type(self.loss).views is not Loss.views
        fused = isinstance(step, FusedStep) and step.is_at_models
        with self.forward.hold(w) if fused else nullcontext():
            for i, (active, batch) in enumerate(schedule):
                if active < len(active_ctx.clients):
                    active_ctx = ctx.first(active)
                if has_views:
                    batch = self.loss.views(batch, active_ctx.generators(Purpose.VIEWS, i))
                grad = MiniBatchOracle(self.forward, self.loss, batch, _rows(o, active), active_ctx, metrics, i)
                models = w if active == len(w) else w[:active]
                c = _replace_rows(c, step(models, grad, _rows(c, active), active_ctx))
                o = _replace_rows(o, grad.state)
        return c, o

    def _schedule(self, shards: Sequence[Shard], ctx: Context) -> Schedule:
        clients, draws = ctx.clients, list[Ints]()
        rngs = ClientGenerators(self.seed, Purpose.BATCHES, ctx.round)
        positions, sizes = visits(self.sampler, shards, clients, self.population, rngs)
        if self.augmentation is not None:
            rngs = ClientGenerators(self.seed, Purpose.AUGMENT, ctx.round)
            for client, steps in zip(clients.ids.tolist(), clients.steps.tolist(), strict=True):
                draws.append(self.augmentation.draw(rngs.at(client), steps, self.population.batch_size))
        return Schedule(shards, positions, sizes, draws, self.augmentation)

    def context(self, clients: Clients, sent: Broadcast) -> Context:
        """Return what these clients see while they train, each with its learning rate."""
        rates = np.full(len(clients), sent.base_lr)
        layout = self.forward.network.layout
        ctx = Context(self.seed, sent.round, sent.x, sent.message, self.population, clients, rates, {}, layout)
        return (
            replace(ctx, learning_rates=self.method.local_lr(ctx)) if isinstance(self.method, LocalRates) else ctx
        )

    @contextmanager
    def _torch_rng(self, ctx: Context) -> Iterator[None]:
        """Seed torch's global generator, which dropout draws from, with the client's address during training.

        Not needed for stacked clients, whose models are deterministic.
        """
        if len(ctx.clients) > 1:
            yield
            return
        rng = generator(self.seed, Purpose.DROPOUT_LAYERS, ctx.round, int(ctx.clients.ids[0]))
        with own_torch_generator([ctx.x.device] if ctx.x.is_cuda else []):
            torch.manual_seed(int(rng.integers(2**63)))
            yield


def _split(state: State) -> tuple[State, State]:
    """Return the method's and the loss's part of a client's state."""
    c = {key: value for key, value in state.items() if not key.startswith(LOSS) and key != BUFFERS}
    o = {key.removeprefix(LOSS): value for key, value in state.items() if key.startswith(LOSS)}
    return c, o


def _rows(state: State, k: int) -> State:
    return {key: value[:k] for key, value in state.items()}


def _replace_rows(state: State, active: State) -> State:
    """Return the state with its first rows, those of the clients still active, replaced."""
    return {
        key: new if len(new) == len(state[key]) else torch.cat([new, state[key][len(new) :]])
        for key, new in active.items()
    }
