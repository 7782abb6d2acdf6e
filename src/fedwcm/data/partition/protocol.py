"""What a partition is, what is checked of it, and the steps that most share: sizes, Dirichlet weights, dealing."""

from dataclasses import dataclass
from numbers import Real
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require, require_count

# Beyond these a Dirichlet draw is one-hot, or even, to the last bit.
_SMALLEST, _LARGEST = 1e-9, 1e9


class Partition(Protocol):
    """Splits a labelled data set over clients.

    The call returns one array of indices into `labels` for each client, sorted. No client is empty, no index is in
    two of them, and some may be in none.
    The same generator state gives the same split.
    """

    @property
    def clients(self) -> int:
        """The number of clients."""
        ...

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        ...


def check_positive(field: str, value: object) -> None:
    """Raise unless the value is a positive number of a sensible magnitude."""
    in_range = not isinstance(value, bool) and isinstance(value, Real) and _SMALLEST <= float(value) <= _LARGEST
    require(in_range, field, value, f"a number above 0 (from {_SMALLEST:g} to {_LARGEST:g})")


@dataclass(frozen=True, kw_only=True)
class DirichletPartition:
    """What partitions with Dirichlet(beta) priors have in common."""

    clients: int
    beta: float

    def __post_init__(self) -> None:
        require_count("clients", self.clients)
        check_positive("beta", self.beta)


def require_samples(labels: NDArray[np.int64], clients: int) -> None:
    """Raise unless there is a sample for each client."""
    allowed = f"at most {labels.size}: there are only {labels.size} samples, and each client needs at least one"
    require(labels.size >= clients, "clients", clients, allowed)


def check_parts(name: str, parts: object, samples: int, clients: object = None) -> list[NDArray[np.int64]]:
    """Return what a partition of the user's own made, as int64.

    Refuse what is not one array of rows for each client, with no row in two of them. Rows may be left out.

    Args:
        name: of the partition, for error messages.
        parts: what it returned.
        samples: the number of rows that there are.
        clients: the number of clients that it promises, if it does.
    """
    if not isinstance(parts, (list, tuple)) or not parts:
        raise ValueError(
            f"{name} returned {_describe(parts)}: it must be a list with an array of rows for each client"
        )
    if clients is not None and len(parts) != clients:
        raise ValueError(f"{name} returned {len(parts)} parts: it must be one for each of its clients = {clients}")
    rows = [_check_part(f"{name}: part {k}", part, samples) for k, part in enumerate(parts)]
    times = np.bincount(np.concatenate(rows), minlength=samples)
    if times.max() > 1:
        row = int(times.argmax())
        owners = [k for k, part in enumerate(rows) if row in part]
        raise ValueError(
            f"{name} gives row {row} {times[row]} times, to the parts {', '.join(map(str, owners))}: "
            "a row must be given at most once"
        )
    return rows


def _check_part(where: str, part: object, samples: int) -> NDArray[np.int64]:
    if not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.kind not in "iu":
        raise ValueError(f"{where} is {_describe(part)}: it must be an array of whole numbers, of shape (n,)")
    if not part.size:
        raise ValueError(f"{where} is empty: every client must have at least one row")
    wrong = part[(part < 0) | (part >= samples)]
    if wrong.size:
        raise ValueError(f"{where} has the row {wrong[0]}: rows must be from 0 to {samples - 1}")
    return part.astype(np.int64)


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    empty = "an empty" if isinstance(value, (list, tuple)) and not value else "a"
    return f"{empty} {type(value).__name__}"


# Entries (draws times classes) held at a time while drawing.
_BLOCK = 2**20


def equal_sizes(samples: int, clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw client sizes that differ by at most one. Chance decides who gets one more."""
    sizes = np.full(clients, samples // clients, dtype=np.int64)
    sizes[: samples % clients] += 1
    return rng.permutation(sizes)


def shuffle_by_class(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return all indices, class after class, in random order within each class."""
    order = rng.permutation(labels.size)
    return order[np.argsort(labels[order], kind="stable")]


def rank_within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each entry how many earlier entries are of the same group."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    rank = np.empty(groups.size, dtype=np.int64)
    rank[order] = np.arange(groups.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def group_by_owner(owner: NDArray[np.int64], clients: int) -> list[NDArray[np.int64]]:
    """Return each client's indices, sorted, from the owner of each sample."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def deal_in_order(
    order: NDArray[np.int64], receivers: NDArray[np.int64], amounts: NDArray[np.int64], clients: int
) -> list[NDArray[np.int64]]:
    """Deal the samples in this order: the first amounts[0] go to receivers[0], and so on."""
    owner = np.empty(order.size, dtype=np.int64)
    owner[order] = np.repeat(receivers, amounts)
    return group_by_owner(owner, clients)


def deal_counts(
    counts: NDArray[np.int64], labels: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Give client k exactly counts[k, c] random samples of class c. The counts must use up each class."""
    clients, classes = counts.shape
    receivers = np.tile(np.arange(clients), classes)
    return deal_in_order(shuffle_by_class(labels, rng), receivers, counts.T.ravel(), clients)


def log_dirichlet(beta: float, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw the logarithms of Dirichlet(beta) rows, up to a constant for each row.

    A Dirichlet row is a row of Gamma(beta) draws, normalised. At small beta most of those underflow, and
    renormalising over a few of the entries would divide 0 by 0. Their logarithms do not underflow:
    Gamma(beta) has the law of Gamma(beta + 1) * U^(1 / beta).
    """
    log_gamma: NDArray[np.float64] = np.log(rng.standard_gamma(beta + 1, shape))
    return log_gamma - rng.standard_exponential(shape) / beta


def renormalise(log_weights: NDArray[np.float64], allowed: NDArray[np.bool_] | bool = True) -> NDArray[np.float64]:
    """Return weights over the allowed entries of each row, scaled so that the largest is 1; the others are 0.

    A row in which nothing is allowed comes out even, for the caller to ignore.
    """
    masked = np.where(allowed, log_weights, -1e300)
    scaled: NDArray[np.float64] = np.exp(masked - masked.max(axis=1, keepdims=True))
    return scaled


def draw_without_reuse(
    log_prior: NDArray[np.float64],
    sizes: NDArray[np.int64],
    stock: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw counts (clients, classes) that use up `sizes` and `stock` exactly; both must have the same sum.

    In each sweep every client with room draws one class from its prior, renormalised over the classes
    that are left. Where a class is asked for more than it has, chance decides who is served, and the
    others draw again in the next sweep. Serving all clients in turn is what keeps their mixes alike in
    law: served one after the other, the last would get only what nobody wanted.

    Between two exhausted classes the sweeps are independent, so many are drawn at a time.
    """
    clients, classes = log_prior.shape
    counts = np.zeros(clients * classes, dtype=np.int64)
    room, left = sizes.copy(), stock.copy()
    while room.any():
        active = rng.permutation(np.flatnonzero(room))
        sweeps = min(int(room[active].min()), max(1, _BLOCK // (active.size * classes)))
        wishes = _draw_wishes(renormalise(log_prior[active], left > 0), sweeps, rng)
        served = _grant_wishes(wishes, active.size, left)
        client = np.resize(active, served.size)[served]
        granted = wishes[: served.size][served]
        counts += np.bincount(client * classes + granted, minlength=counts.size)
        room -= np.bincount(client, minlength=clients)
        left -= np.bincount(granted, minlength=classes)
    return counts.reshape(clients, classes)


def _draw_wishes(weights: NDArray[np.float64], sweeps: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw a class for each row in each sweep, sweep after sweep."""
    cumulative = np.cumsum(weights, axis=1)
    threshold = rng.random((sweeps, weights.shape[0])) * cumulative[:, -1]
    # A class of weight 0 adds nothing to the cumulative sum, so no threshold can fall on it.
    wishes: NDArray[np.int64] = np.count_nonzero(cumulative <= threshold[..., None], axis=-1).ravel()
    return wishes


def _grant_wishes(wishes: NDArray[np.int64], clients: int, left: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which wishes are granted, up to the end of the first sweep in which a class runs short."""
    granted = rank_within(wishes) < left[wishes]
    if granted.all():
        return granted
    short_sweep = int(np.argmin(granted)) // clients
    return granted[: (short_sweep + 1) * clients]
