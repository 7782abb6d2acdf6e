"""Views, batches and contexts made by hand, for direct calls of an objective."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, Outputs, SampleStore
from fedwcm.core.loss import Loss
from fedwcm.core.types import Clients, Context, Population, State


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def view_of(features: Tensor, classes: int, seed: int = 0) -> Outputs:
    """The outputs of linear heads, one a client, on these features; `at` gives another, received model's."""
    clients, _, width = features.shape
    weight, bias = numbers(clients, width, classes, seed=seed), numbers(clients, 1, classes, seed=seed + 1)

    def head(other: Tensor) -> Tensor:
        return other @ weight + bias

    def at(x: Tensor) -> Outputs:
        received = features.detach() @ numbers(clients, width, classes, seed=seed + 2)
        return Outputs(received, features, head, at)

    return Outputs(head(features), features, head, at)


def logits_view(logits: Tensor) -> Outputs:
    """A outputs of nothing but logits; its received model is the same."""
    plain = Outputs(logits.detach(), logits, lambda other: other, lambda x: plain)
    return Outputs(logits, logits, lambda other: other, lambda x: plain)


def batch_of(labels: Sequence[Sequence[int]] | Tensor, weight: Tensor | None = None) -> Batch:
    """A batch of these labels `(K, b)`."""
    y = torch.as_tensor(labels)
    resident = SampleStore(torch.zeros(1), y.new_zeros(1), y.new_zeros(1), np.zeros(1, dtype=np.int64))
    return Batch(torch.zeros(y.shape, dtype=torch.float64), y, weight, torch.zeros_like(y), resident)


def context_of(
    counts: Sequence[Sequence[int]],
    round_: int = 0,
    rounds: int = 10,
    message: State | None = None,
    target: Sequence[float] | None = None,
) -> Context:
    """The context of clients that have so many samples of each class, who are all the clients there are."""
    table = np.array(counts)
    samples = table.sum(axis=1)
    totals = table.sum(axis=0)
    population = Population(
        clients=len(table),
        classes=len(totals),
        mean_samples=float(samples.mean()),
        prior=totals / totals.sum(),
        rounds=rounds,
        epochs=1,
        batch_size=8,
        target=None if target is None else np.array(target),
    )
    clients = Clients(np.arange(len(table)), samples, table, -(-samples // 8))
    return context(torch.zeros(3, dtype=torch.float64), clients, population, round_, message)


def context(
    x: Tensor, clients: Clients, population: Population, round_: int = 0, message: State | None = None
) -> Context:
    """The context of these clients at a received model, with nothing prepared."""
    rates = np.full(len(clients), 0.1)
    return Context(5, round_, x, message or {}, population, clients, rates, {})


def value(
    objective: Loss, outputs: Outputs, batch: Batch, ctx: Context, o: State | None = None
) -> tuple[Tensor, State]:
    """The losses of the clients and their state after the step, from the initial state unless one is given."""
    start = objective.init_client(ctx.clients, ctx.population) if o is None else o
    return objective(outputs, batch, start, ctx)


def slope(
    objective: Loss, features: Tensor, labels: Tensor, weight: Tensor | None, ctx: Context
) -> tuple[Tensor, Tensor]:
    """The losses, and the gradient of their sum with respect to the features, under heads made by hand."""
    leaf = features.clone().requires_grad_()
    losses, _ = value(objective, view_of(leaf, ctx.population.classes), batch_of(labels, weight), ctx)
    return losses.detach(), torch.autograd.grad(losses.sum(), leaf)[0]
