"""Checks of what a method, loss or sampler returns: the error names the class, the hook and what is expected."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.batch import Outputs
from fedwcm.core.method import PersonalModels
from fedwcm.core.types import Cohort, Floats, Ints, Layout, State, Vec


class ComponentError(ValueError):
    """A component of the user's own has done what it must not: the message is enough, wherever it was raised."""


def check_tuple(hook: Any, result: Any, *parts: str) -> Any:
    """Return what a hook has returned; raise unless it is a tuple of these parts.

    Args:
        hook: the bound hook, whose class and name the error gives.
        result: what it has returned.
        parts: what each entry of the tuple is.
    """
    if isinstance(result, tuple) and len(result) == len(parts):
        return result
    got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
    raise ComponentError(f"{_name(hook)} returned {got}: it must return a tuple ({', '.join(parts)})")


def check_rows(hook: Any, what: str, values: Any, clients: int, *, numbers: bool = False) -> None:
    """Raise unless every entry has one row per client or, if they are to be plain numbers, one number."""
    for key, value in values.items():
        shape = tuple(np.shape(value))
        if shape[:1] != (clients,) or (numbers and len(shape) > 1):
            allowed = f"({clients},), one number" if numbers else f"({clients}, …), one row"
            raise ComponentError(
                f"{_name(hook)} returned {key!r} of shape {shape} in the {what}: it must be {allowed} for each "
                "client of the block"
            )


@contextmanager
def lend(hook: Any, lent: Mapping[str, Any]) -> Iterator[None]:
    """Lend tensors to a hook, or to all hooks of a method; raise if one of them is changed in place."""
    writes = {name: tensor._version for name, tensor in lent.items() if isinstance(tensor, Tensor)}
    yield
    for name, count in writes.items():
        if lent[name]._version != count:
            raise ComponentError(
                f"{_name(hook)} changes {name} in place: it must return new values, as others read the old"
            )


def check_model(hook: Any, model: Any, like: Tensor) -> None:
    """Raise unless a hook has returned a model."""
    if not isinstance(model, Tensor) or model.shape != like.shape:
        got = f"shape {tuple(model.shape)}" if isinstance(model, Tensor) else f"type {type(model).__name__}"
        raise ComponentError(f"{_name(hook)} returned a model of {got}: it must be of shape {tuple(like.shape)}")


def own_model(method: PersonalModels, x: Vec, s: State, c: State, layout: Layout) -> Vec:
    """Return the model of one client, by what it keeps."""
    models = method.eval_clients(x, s, c, layout)
    check_model(method.eval_clients, models, x[None])
    return models[0]


def check_weights(hook: Any, weights: Any, cohort: Cohort) -> Floats:
    """Return the weights of the clients of a round; raise unless there is a finite and allowed one for each."""
    where, clients = _name(hook), len(cohort)
    if not isinstance(weights, np.ndarray) or weights.dtype.kind not in "fiu":
        kind = f"an array of {weights.dtype}" if isinstance(weights, np.ndarray) else f"a {type(weights).__name__}"
        raise ComponentError(f"{where} returned {kind}: it must return a NumPy array of numbers")
    if weights.shape != (clients,):
        raise ComponentError(
            f"{where} returned an array of shape {weights.shape}: it must be ({clients},), one per client"
        )
    if not np.isfinite(weights).all():
        bad = int(np.flatnonzero(~np.isfinite(weights))[0])
        raise ComponentError(
            f"{where} returned {weights[bad]} for client {bad} of the round: it must be a finite number"
        )
    if cohort.max_share is not None and not np.allclose(weights, cohort.limit_shares(weights)):
        share, most = weights.max() / weights.sum(), f"aggregation.max_share is {cohort.max_share}"
        raise ComponentError(
            f"{where} gives a client {share:.2f} of the weight, {most}: return cohort.limit_shares(weights)"
        )
    return weights


def check_ids(hook: Any, ids: Any, clients: int) -> Ints:
    """Return the ids of a round's clients, ascending; raise unless they are different clients of so many."""
    chosen: Ints = np.unique(ids)
    whole = chosen.dtype.kind in "iu" and np.ndim(ids) == 1
    if not whole or not len(ids) or len(chosen) < len(ids) or chosen[0] < 0 or chosen[-1] >= clients:
        raise ComponentError(
            f"{_name(hook)} returned {ids!r:.200}: it must return different ids from 0 to {clients - 1}"
        )
    return chosen


def check_losses(loss: Any, values: Any, clients: int) -> None:
    """Raise unless a loss has returned one value per client that can be differentiated."""
    shape = getattr(values, "shape", None)
    if shape != (clients,):
        got = f"a {type(values).__name__}" if shape is None else f"a tensor of shape {tuple(shape)}"
        raise ComponentError(
            f"{type(loss).__qualname__}.__call__ returned {got} as the loss: it must be a tensor of shape "
            f"({clients},), one value per client; batch.mean(…) averages over the samples of each"
        )
    if not values.requires_grad:
        raise ComponentError(
            f"{type(loss).__qualname__}.__call__ returned a loss without a gradient: it must be computed from "
            "outputs.logits or outputs.features, without detach() and no_grad()"
        )


def check_padding(loss: Any, values: Tensor, outputs: Outputs, weight: Tensor) -> None:
    """Raise if a loss depends on samples of weight 0, which only fill up the batch of a client that has fewer."""
    (slope,) = torch.autograd.grad(values.sum(), outputs.logits, retain_graph=True, materialize_grads=True)
    if bool((slope.abs().amax(dim=-1)[weight == 0] > 0).any()):
        raise ComponentError(
            f"{type(loss).__qualname__}.__call__ counts samples that only pad a shorter batch (batch.weight is 0 "
            "there): average over the samples of each client with batch.mean(…), which leaves them out"
        )


def check_epochs(sampler: Any, orders: Sequence[Any], samples: Ints) -> Ints:
    """Return the positions visited in these epochs, one epoch after the other.

    Args:
        sampler: the sampler, whose class the error names.
        orders: what it has returned for each epoch.
        samples: of each epoch, how many samples the client has: so many positions it must visit, each below it.
    """
    for order, count in zip(orders, samples.tolist(), strict=True):
        length = len(order) if hasattr(order, "__len__") else None
        if length != count:
            got = f"a {type(order).__name__}" if length is None else f"{length} positions"
            raise ComponentError(
                f"{type(sampler).__qualname__}.epoch returned {got} for a client with {count} samples: it must "
                "return as many positions as the client has samples"
            )
    positions: Ints = np.concatenate(orders)
    if positions.dtype.kind in "iu" and positions.min() >= 0 and (positions < np.repeat(samples, samples)).all():
        return positions
    for order, count in zip(map(np.asarray, orders), samples, strict=True):
        if order.dtype.kind not in "iu" or order.min() < 0 or order.max() >= count:
            got = f"positions from {order.min()} to {order.max()} of type {order.dtype}"
            raise ComponentError(
                f"{type(sampler).__qualname__}.epoch returned {got}: they must be integers from 0 to {count - 1}"
            )
    return positions.astype(np.int64)


def _name(hook: Any) -> str:
    """Return the class and the name of a bound hook, `MyMethod.weights`, or the class of an object."""
    owner = getattr(hook, "__self__", None)
    return (
        f"{type(owner).__qualname__}.{hook.__name__}"
        if owner is not None
        else getattr(hook, "__name__", type(hook).__qualname__)
    )
