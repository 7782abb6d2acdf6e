"""Options of a round: who takes part, the clients' optimizer and rate, the server's sums, a cluster's workers.

Nothing here imports torch or Ray.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import cos, pi
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require, require_allowed
from fedwcm.core.ranges import (
    BelowOne,
    Count,
    CountOrZero,
    Finite,
    Inside,
    NonNegative,
    Positive,
    PositiveShare,
    Range,
)
from fedwcm.core.rng import Purpose, generator
from fedwcm.utils.field_types import Flag, Flagged

Ints = NDArray[np.int64]

TRIES = 1000
"""How often Bernoulli sampling is repeated if it selects no client."""


CANDIDATES = 10
"""Clients among which balanced sampling chooses the next one: few enough for all clients to have their turn."""


DRAWS = ("fixed", "bernoulli", "balanced")
"""Values of `participation.sampling` that only draw."""


def share_of(clients: int, fraction: float) -> int:
    """Return the number of clients in this fraction of them, at least 1."""
    return max(1, round(fraction * clients))


@dataclass(frozen=True, kw_only=True)
class ParticipationOptions:
    """Which clients take part in a round.

    Args:
        fraction: share of the clients sampled each round.
        sampling: `fixed` draws the same number every round; `bernoulli` selects each client independently with
            this probability (repeated while no client is selected); `balanced` draws the same number, so that the
            round's summed class counts are nearly even (Zhang et al., Fed-CBS, 2023); needs each client's counts.
            `oort`, `available[trace=FILE]` and `unequal-epochs` choose by what is known of the clients, and so
            does `package.module:Name`, a `fedwcm.Participation`.
        dropout: probability that a sampled client never answers.
        speeds: spread of the clients' speeds on a simulated clock: the standard deviation of their logarithm; by
            default all are equally fast.
        deadline: time that the server waits in a round, in multiples of what the median client needs; by default
            it waits for all.
        staleness: rounds by which an answer may be late and still be used; by default a late one is left out.
    """

    fraction: Annotated[PositiveShare, Flag("participation")] = 0.1
    sampling: Flagged[str] = "fixed"
    dropout: BelowOne = 0.0
    speeds: Finite | None = None
    deadline: Finite | None = None
    staleness: Count | None = None

    def __post_init__(self) -> None:
        require_allowed(self)
        late = self.staleness
        require(late is None or self.deadline is not None, "staleness", late, "none without a deadline")

    @property
    def draws(self) -> bool:
        """Whether clients are drawn, by no more than chance and their class counts."""
        return self.sampling in DRAWS

    @property
    def has_clock(self) -> bool:
        """Whether rounds are on a simulated clock."""
        return self.speeds is not None or self.deadline is not None

    def cohort_size(self, clients: int) -> int:
        """Return how many of these clients are sampled; with `bernoulli`, on average."""
        return share_of(clients, self.fraction)

    def sample(self, clients: int, seed: int, round_: int, counts: Callable[[], Ints] | None = None) -> Ints:
        """Return the ids of the clients asked to train, ascending; at least one.

        `counts` gives each client's samples per class, for `balanced`.
        """
        rng = generator(seed, Purpose.COHORT, round_)
        if self.sampling == "balanced":
            if counts is None:
                raise ValueError("participation.sampling = 'balanced' needs the class counts of every client")
            return balanced_cohort(counts(), self.cohort_size(clients), rng)
        if self.sampling == "fixed":
            return np.sort(rng.choice(clients, self.cohort_size(clients), replace=False, shuffle=False))
        for _ in range(TRIES):
            chosen = np.flatnonzero(rng.random(clients) < self.fraction)
            if len(chosen):
                return chosen
        return rng.integers(clients, size=1)  # with such a small fraction, more than one client is unlikely

    def answering(self, sampled: Ints, seed: int, round_: int) -> Ints:
        """Return the ids of the sampled clients that answer; possibly none."""
        if not self.dropout:
            return sampled
        draws = generator(seed, Purpose.ANSWERS, round_).random(len(sampled))
        return sampled[draws >= self.dropout]


def balanced_cohort(counts: Ints, size: int, rng: np.random.Generator) -> Ints:
    """Return the ids of so many clients, ascending, whose summed class counts are nearly even.

    The first client is drawn at random. Each other one is, of some drawn at random, the one that brings the
    shares of the classes nearest to even ones, by the sum of squares.
    """
    waiting = rng.permutation(len(counts))
    chosen, total, waiting = [waiting[0]], counts[waiting[0]].astype(np.float64), waiting[1:]
    while len(chosen) < size:
        drawn = rng.choice(len(waiting), min(CANDIDATES, len(waiting)), replace=False)
        sums = total + counts[waiting[drawn]]
        shares = sums / sums.sum(axis=1, keepdims=True)
        best = drawn[np.argmin(((shares - 1.0 / shares.shape[1]) ** 2).sum(axis=1))]
        chosen.append(waiting[best])
        total, waiting = total + counts[waiting[best]], np.delete(waiting, best)
    return np.sort(np.array(chosen, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How the server sums uploads.

    Args:
        rule: `mean` sums with the method's weights; `median` and `trimmed` replace a weighted mean by the weighted
            median of each coordinate, or by its weighted mean without the largest and smallest values; `centered`
            moves from that median towards each increment, by at most the median distance (centred clipping).
        trim: share of the weight dropped at either end of a coordinate, the heaviest client's at least, so that
            the rule protects small rounds too; only for `trimmed`.
        max_share: largest share of a round's weight that one client may have, or twice an equal share if that is
            more; `none` for no bound.
        norm_ratio: bound on the norm of a client's increment as a multiple of the median norm of the round, and
            on the change of its buffers and on whatever else it uploads likewise; `none` for no such bound.
        max_norm: bound on the norm of a client's increment, to which longer ones are scaled; `none` for no bound.
        quantile: share of the increments that the bound is to leave as they are: it starts at `max_norm` and
            follows that share from round to round (Andrew et al., 2021); `none` for a bound that stays.
        norm_lr: how fast the bound follows.
    """

    rule: Literal["mean", "median", "trimmed", "centered"] = "mean"
    trim: Annotated[float, Range(0, 0.5, open="low, high")] = 0.1
    max_share: PositiveShare | None = None
    norm_ratio: Positive | None = None
    max_norm: Positive | None = None
    quantile: Inside | None = None
    norm_lr: Positive = 0.2

    def __post_init__(self) -> None:
        require_allowed(self)
        if self.quantile is not None and self.max_norm is None:
            raise ValueError(f"quantile = {self.quantile} needs a bound to start from: set max_norm")

    @property
    def needs_uploads(self) -> str | None:
        """The option for which the server must see every single upload, with its value; None if there is none."""
        if self.rule != "mean":
            return f"aggregation.rule = {self.rule!r}"
        return None if self.norm_ratio is None else f"aggregation.norm_ratio = {self.norm_ratio:g}"

    def bound(self, norms: NDArray[np.float64]) -> float:
        """Return the bound on the norms of a round's increments; infinite if there is none."""
        relative = self.relative_bound(norms)
        return relative if self.max_norm is None else min(relative, self.max_norm)

    def relative_bound(self, norms: NDArray[np.float64]) -> float:
        """Return the bound that follows from the median of norms; infinite if there is none."""
        usual = float(np.quantile(norms, 0.5, method="lower"))
        return math.inf if self.norm_ratio is None else self.norm_ratio * usual

    def next_bound(self, bound: float | None, clipped: float) -> float | None:
        """Return the bound of the next round, given the share of the increments that were longer than this one."""
        if bound is None or self.quantile is None:
            return bound
        return bound * math.exp(self.norm_lr * (clipped - (1.0 - self.quantile)))


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What the server does besides aggregation.

    Args:
        ema: decay of a moving average of the global model over the rounds, which is then what is evaluated and
            handed over; 0.9 averages about ten rounds, 0 is the last model itself.
    """

    ema: BelowOne = 0.0

    def __post_init__(self) -> None:
        require_allowed(self)


LOCAL = "local"
"""The address of a cluster on this machine that begins and ends with its use."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where and how the `ray` backend runs.

    Args:
        ray_address: address of a Ray cluster; by default the one that `RAY_ADDRESS` names or, if it names none, a
            local one that the command starts and stops.
        worker_gpus: share of a GPU for each worker of the `ray` backend; 0 for a CPU core each.
        spread: what `compare` and `tune` divide among the workers of `ray`: whole `runs`, several at a time, or
            the `clients` of one run after the other; `auto` decides by their number and size.
    """

    ray_address: str | None = None
    worker_gpus: float = 0.0
    spread: Literal["auto", "runs", "clients"] = "auto"

    def __post_init__(self) -> None:
        share = self.worker_gpus
        whole = share > 1 and float(share).is_integer()
        require(0 <= share <= 1 or whole, "worker_gpus", share, "in [0, 1], or a whole number")


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """How a client steps along the method's direction. The optimizer's state starts anew in every round.

    Args:
        optimizer: `sgd`, `adam`, or `adamw` (weight decay apart from the moments), if the method permits it.
        momentum: of `sgd`: factor on the sum of the earlier directions.
        nesterov: of `sgd`: Nesterov's form of the momentum.
        betas: of Adam: decay of the mean direction and of its mean square.
        eps: of Adam: added to the root of the mean square.
        weight_decay: times the model, added to the direction after clipping.
        clip: maximum norm of a step's direction; `none` for no clipping.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: BelowOne = 0.0
    nesterov: bool = False
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    clip: Positive | None = None

    def __post_init__(self) -> None:
        require_allowed(self)
        two_shares = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(two_shares, "betas", self.betas, "two numbers in [0, 1)")
        defaults = {field.name: field.default for field in fields(OptimizerOptions)}
        others = ("betas", "eps") if self.optimizer == "sgd" else ("momentum", "nesterov")
        for field in others:
            value, unused = getattr(self, field), defaults[field]
            require(value == unused, field, value, f"{unused} with optimizer = {self.optimizer!r}, which has none")
        require(bool(self.momentum) or not self.nesterov, "nesterov", True, "false without momentum")

    @property
    def plain(self) -> bool:
        """Whether a step depends on nothing but its own direction, linearly: SGD without momentum or clipping."""
        return self.optimizer == "sgd" and not self.momentum and self.clip is None


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """A learning rate and its schedule over the rounds. Without state: a resumed run goes on exactly.

    Args:
        lr: learning rate, the highest one of the schedule.
        schedule: `constant`; `exponential` (times `lr_decay` after every round); `step` (times `lr_decay` after
            every `lr_decay_every` rounds); `cosine` (from `lr` down to `lr_end` after the last round).
        lr_decay: factor of `exponential` and `step`, in (0, 1].
        lr_decay_every: rounds between two factors of `step`.
        lr_end: learning rate at which `cosine` ends; by default 0.
        warmup: rounds before the schedule starts, in which the learning rate rises linearly to `lr`.
    """

    lr: Flagged[Finite] = 0.1
    schedule: Literal["constant", "exponential", "step", "cosine"] = "constant"
    lr_decay: PositiveShare | None = None
    lr_decay_every: Count | None = None
    lr_end: float | None = None
    warmup: CountOrZero = 0

    def __post_init__(self) -> None:
        require_allowed(self)
        for field, schedules in PARAMETERS.items():
            self._require_for(field, schedules)
        for field in ("lr_decay", "lr_decay_every"):
            needed = self.schedule in PARAMETERS[field] and getattr(self, field) is None
            require(not needed, "schedule", self.schedule, f"given together with {field}")
        end = self.lr_end
        require(end is None or 0 <= end <= self.lr, "lr_end", end, f"between 0 and lr = {self.lr}")

    def at(self, r: int, rounds: int) -> float:
        """Return the learning rate of round r, counted from 0, of a run of this many rounds. It is never 0."""
        if r < self.warmup:
            return self.lr * (r + 1) / (self.warmup + 1)
        r, rounds = r - self.warmup, rounds - self.warmup
        if self.schedule == "cosine":
            end = self.lr_end or 0.0
            return end + (self.lr - end) * (1 + cos(pi * r / rounds)) / 2
        if self.lr_decay is None:
            return self.lr
        return self.lr * self.lr_decay ** (r // (self.lr_decay_every or 1))

    def _require_for(self, field: str, schedules: tuple[str, ...]) -> None:
        value = getattr(self, field)
        allowed = f"none with schedule = {self.schedule!r}: it belongs to {' and '.join(schedules)}"
        require(value is None or self.schedule in schedules, field, value, allowed)


PARAMETERS = {
    "lr_decay": ("exponential", "step"),
    "lr_decay_every": ("step",),
    "lr_end": ("cosine",),
}
"""Which schedules have which parameter."""
