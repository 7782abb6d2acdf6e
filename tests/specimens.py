"""Methods and objectives that exist for tests alone: each shows one thing that the engine must do."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.loss import Loss, Outputs
from fedwcm.core.method import Method, mean_weights
from fedwcm.core.types import (
    Clients,
    Cohort,
    Combination,
    Context,
    GradientOracle,
    Ints,
    Population,
    Report,
    State,
    Vec,
)
from fedwcm.engine.batches import Batch
from fedwcm.engine.local_data import LocalData
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
class FullGradient(Method):
    """Probes the gradient of all local data at the received model."""

    probes: ClassVar[bool] = True

    def probe(self, local: LocalData, ctx: Context) -> State:
        return {"full": local.gradient(ctx.x.expand(len(ctx.clients), -1))}


@dataclass(frozen=True, kw_only=True)
class Mime(FullGradient):
    """Mime's variance reduction: local gradients are corrected by the full one of the whole cohort at `x`.

    The server keeps the last full gradient, which the combinations of the first phase bring it.
    """

    def init(self, x: Vec, population: Population, survey: Report) -> State:
        return {"last": torch.zeros_like(x)}

    def probe_message(self, s: State) -> State:
        return {"last": s["last"]}

    def combine_probe(self, s: State, cohort: Cohort) -> dict[str, Combination]:
        return {"full": Combination("full", mean_weights("samples", cohort))}

    def message(self, s: State, probed: State) -> State:
        return {"full": probed["full"]}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w) - grad(ctx.x.expand_as(w)) + ctx.message["full"], c

    def update(self, x: Vec, s: State, agg: State, cohort: Cohort) -> tuple[Vec, State]:
        x, s = super().update(x, s, agg, cohort)
        return x, {**s, "last": agg["full"]}


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
class Dying(Failing):
    """Takes its process along when it fails."""

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        try:
            return super().finish(w, c, ctx)
        except ArithmeticError:
            os._exit(1)


@dataclass(frozen=True, kw_only=True)
class Seen(CrossEntropy):
    """Cross-entropy that counts its steps in client state, and notes down every batch that it is shown."""

    batches: list[tuple[Any, Any]] = field(default_factory=list)

    def init_client(self, clients: Clients, population: Population) -> State:
        return {"seen": torch.zeros(len(clients))}

    def loss(self, view: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        for k, client in enumerate(ctx.clients.ids):
            real = slice(None) if batch.weight is None else batch.weight[k].bool()
            self.batches.append((int(client), batch.sample_ids[k][real].tolist()))
        loss, _ = super().loss(view, batch, o, ctx)
        return loss, {"seen": o["seen"] + 1}


@dataclass(frozen=True, kw_only=True)
class Growing(Seen):
    """Cross-entropy that weighs more with every step that was seen."""

    def loss(self, view: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, after = super().loss(view, batch, o, ctx)
        return loss * (1.0 + o["seen"]), after


@dataclass(frozen=True, kw_only=True)
class Scaled(CrossEntropy):
    """Cross-entropy times a factor of each client's own, which is made once a round."""

    def prepare(self, local: LocalData, ctx: Context) -> State:
        return {"factor": 1.0 + torch.from_numpy(ctx.clients.ids).to(ctx.x.dtype)}

    def loss(self, view: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, o = super().loss(view, batch, o, ctx)
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

    def loss(self, view: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        curvature, centre = batch.inputs.chunk(2, dim=-1)
        return batch.mean(0.5 * (curvature * (view.logits - centre) ** 2).sum(dim=-1)), o


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
    """The same method, which now says that its direction is something of its own."""

    def direction(self: Method, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return Method.direction(self, w, grad, c, ctx)

    return type(kind.__name__, (kind,), {"direction": direction})


class ByAutograd(CrossEntropy):
    """Cross-entropy that does not know its gradient."""

    def loss(self, view: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        return super().loss(view, batch, o, ctx)
