"""Methods and objectives that exist for tests alone: each shows one thing that the engine must do."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, LocalData, Outputs
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method, TwoPhase, mean_weights
from fedwcm.core.types import (
    Clients,
    Cohort,
    Context,
    GradientOracle,
    Ints,
    Population,
    Report,
    State,
    Uploads,
    Vec,
)
from fedwcm.losses.cross_entropy import CrossEntropy


@dataclass(frozen=True, kw_only=True)
class Sam(Method):
    """Two gradients a step: the second one, a little further along the first, is descended along."""

    rho: float = 0.5

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        g = grad(w)
        return grad(w + self.rho * g), c


@dataclass(frozen=True, kw_only=True)
class Counter(Method):
    """Counts local steps and participations in the clients' own state, and reports both."""

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {"steps": x.new_zeros(len(clients)), "visits": torch.zeros(len(clients), 1, dtype=torch.int64)}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w), {**c, "steps": c["steps"] + 1}

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        c = {**c, "visits": c["visits"] + 1}
        report = {"steps": c["steps"].double().numpy(), "visits": c["visits"][:, 0].double().numpy()}
        return {"delta": w - ctx.x}, report, c


@dataclass(frozen=True, kw_only=True)
class Push(Method):
    """Descends along a given direction, of each client its own multiple, whatever the data."""

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return ctx.message["push"] * (1.0 + ctx._column(ctx.clients.ids)), c


@dataclass(frozen=True, kw_only=True)
class FullGradient(TwoPhase, Method):
    """Probes the gradient of all local data at the received model."""

    def probe(self, local: LocalData, ctx: Context) -> State:
        return {"full": local.gradient(ctx.x.expand(len(ctx.clients), -1))}

    def after_probe(self, s: State, uploads: Uploads, cohort: Cohort) -> State:
        return s


@dataclass(frozen=True, kw_only=True)
class Mime(FullGradient):
    """Mime's variance reduction: local gradients are corrected by the full one of the whole cohort at `x`.

    The server keeps the last full gradient, which the first phase brings it.
    """

    def init(self, x: Vec, population: Population) -> State:
        return {"last": torch.zeros_like(x)}

    def probe_broadcast(self, s: State) -> State:
        return {"last": s["last"]}

    def after_probe(self, s: State, uploads: Uploads, cohort: Cohort) -> State:
        return {**s, "full": uploads.sum("full", mean_weights("samples", cohort))}

    def broadcast(self, s: State) -> State:
        return {"full": s["full"]}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w) - grad(ctx.x.expand_as(w)) + ctx.message["full"], c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x, s = super().update(x, s, uploads, cohort)
        return x, {"last": s["full"]}


@dataclass(frozen=True, kw_only=True)
class Failing(Method):
    """Fails on one client; the others take their time."""

    client: int
    seconds: float = 0.0

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        if self.client in ctx.clients.ids:
            raise ArithmeticError(f"client {self.client} cannot count")
        time.sleep(self.seconds)
        return super().finish(w, c, ctx)


@dataclass(frozen=True, kw_only=True)
class Seen(CrossEntropy):
    """Cross-entropy that counts its steps in client state, and notes down every batch that it is shown."""

    batches: list[tuple[Any, Any]] = field(default_factory=list)

    def init_client(self, clients: Clients, population: Population) -> State:
        return {"seen": torch.zeros(len(clients))}

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        for k, client in enumerate(ctx.clients.ids):
            real = slice(None) if batch.weight is None else batch.weight[k].bool()
            self.batches.append((int(client), batch.sample_ids[k][real].tolist()))
        loss, _ = super().__call__(outputs, batch, o, ctx)
        return loss, {"seen": o["seen"] + 1}


@dataclass(frozen=True, kw_only=True)
class Growing(Seen):
    """Cross-entropy that weighs more with every step that was seen."""

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, after = super().__call__(outputs, batch, o, ctx)
        return loss * (1.0 + o["seen"]), after


@dataclass(frozen=True, kw_only=True)
class Scaled(CrossEntropy):
    """Cross-entropy times a factor of each client's own, which is made once a round."""

    def prepare(self, local: LocalData, ctx: Context) -> State:
        return {"factor": 1.0 + torch.from_numpy(ctx.clients.ids).to(ctx.x.dtype)}

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, o = super().__call__(outputs, batch, o, ctx)
        return loss * ctx.prepared["factor"], o


class Shift:
    """An augmentation that adds a whole number to every sample."""

    def draw(self, rng: np.random.Generator, steps: int, batch_size: int) -> Ints:
        return rng.integers(-2, 3, size=(steps, batch_size, 1))

    def apply(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs + draws


@dataclass(frozen=True, kw_only=True)
class Quadratic(Loss):
    """½ Σ_j a_j (w_j − c_j)² for a model whose logits are its parameters; inputs are `(a, c)` side by side."""

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        curvature, centre = batch.inputs.chunk(2, dim=-1)
        return batch.mean(0.5 * (curvature * (outputs.logits - centre) ** 2).sum(dim=-1)), o


class Point(torch.nn.Module):
    """A model that is one vector, whatever its input."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.place = torch.nn.Parameter(start.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.place + 0.0 * inputs[..., : len(self.place)]


@contextmanager
def global_torch_rng_untouched() -> Iterator[None]:
    """Fails if torch's global generator is not after the block what it was before."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


def the_long_way(kind: type[Method]) -> type[Method]:
    """The same method, whose direction the engine must ask for at every step."""

    def direction(self: Method, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        v, c = kind.direction(self, w, grad, c, ctx)
        return v.clone(), c

    return type(kind.__name__, (kind,), {"direction": direction})


class ByAutograd(CrossEntropy):
    """Cross-entropy that does not know its gradient."""

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        return super().__call__(outputs, batch, o, ctx)
