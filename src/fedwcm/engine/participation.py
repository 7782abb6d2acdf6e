"""Who works in a round, how much, and when the answers arrive: choices of clients, and a simulated clock.

A choice (`participation.sampling`) is a `Participation`: it sees what the server knows of its clients and returns
those to ask and, if it likes, the local steps of each. The clock (`participation.speeds`, `.deadline`) gives each
client a speed. The server does not wait beyond the deadline: a client that needs longer is left out or, with
`participation.staleness`, answers in the round in which it is done, with what it made of the model of an earlier
one. FedBuff (Nguyen et al., AISTATS 2022) weights such answers by their age: the method `fedbuff`.
"""

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedwcm.core.checks import require, require_allowed
from fedwcm.core.ranges import NonNegative, Positive, Share
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Floats, Ints, Population, State
from fedwcm.engine.client import Broadcast
from fedwcm.engine.options import ParticipationOptions

NEVER = -1
"""Stands for a round that there was not."""


@dataclass(frozen=True, eq=False)
class Known:
    """What is known before a round; arrays have an entry for each client.

    Args:
        round: the number of the round, from 0.
        size: clients that the run asks in a round.
        samples: of each client.
        batches: of one pass over them.
        steps: that it takes in a round, unless it is told otherwise.
        seconds: that it needs for them by the simulated clock, where the median client needs 1.
        losses: mean training loss when it last took part; NaN for one that never did.
        last: the round in which it last took part, or -1.
        free: whether it can be asked: it works on no earlier round.
        counts: returns its samples of each class, `(clients, classes)`, as it reports them.
        rng: for draws.
    """

    round: int
    size: int
    samples: Ints
    batches: Ints
    steps: Ints
    seconds: Floats
    losses: Floats
    last: Ints
    free: NDArray[np.bool_]
    counts: Callable[[], Ints]
    rng: np.random.Generator

    def draw(self, ids: Ints, size: int | None = None) -> Ints:
        """Return so many of these clients, drawn at random; all of them if there are no more."""
        return self.rng.choice(ids, min(self.size if size is None else size, len(ids)), replace=False)


class Participation(ABC):
    """A choice of the clients of each round."""

    def __post_init__(self) -> None:
        require_allowed(self)

    @abstractmethod
    def choose(self, known: Known) -> Ints | tuple[Ints, Ints]:
        """Return the ids of the clients to ask, possibly none; or these and the local steps of each."""


@dataclass(frozen=True, kw_only=True)
class Oort(Participation):
    """Clients with large losses that are fast (Lai, Zhu, Madhyastha, Chowdhury; OSDI 2021).

    The use of a client is samples · loss, plus √(0.1 · ln R / L) in round R for one that last took part in round
    L, times (T / t)^`penalty` for one that needs t seconds, more than T. Drawn in proportion to it are clients
    whose use is at least 95 % of that of the last of the best. Departure: the paper has the root of the mean
    squared loss.

    Args:
        exploration: share of a round that goes to clients that never took part.
        preferred: T, in multiples of the median client's time.
        penalty: exponent for slow clients; 0 for none.
    """

    exploration: Share = 0.1
    preferred: Positive = 1.0
    penalty: NonNegative = 2.0

    def choose(self, known: Known) -> Ints:
        new = np.flatnonzero(known.free & (known.last < 0))
        seen = np.flatnonzero(known.free & (known.last >= 0))
        explored = known.draw(new, max(round(self.exploration * known.size), known.size - len(seen)))
        use = known.samples[seen] * known.losses[seen]
        use = use + np.sqrt(0.1 * np.log(known.round + 1) / (known.last[seen] + 1))
        use = use * np.minimum(1.0, self.preferred / known.seconds[seen]) ** self.penalty
        size = min(known.size - len(explored), len(seen))
        if not size:
            return explored
        good = use >= 0.95 * np.sort(use)[-size]
        shares = use[good] / use[good].sum() if use[good].any() else None
        return np.concatenate([explored, known.rng.choice(seen[good], size, replace=False, p=shares)])


@dataclass(frozen=True, kw_only=True)
class Available(Participation):
    """Clients that a trace says are there, drawn at random.

    Args:
        trace: a CSV file with the columns `client` (its number), `start` and `end`: it is there from the round
            `start` on, until before `end`.
        period: rounds after which the trace begins again; 0 for never.
    """

    trace: str
    period: int = 0

    def choose(self, known: Known) -> Ints:
        r = known.round % self.period if self.period else known.round
        there = np.zeros(len(known.free), dtype=np.bool_)
        for client, start, end in self._spans:
            require(0 <= client < len(there), f"{self.trace}, client", client, f"from 0 to {len(there) - 1}")
            there[client] |= start <= r < end
        return known.draw(np.flatnonzero(there & known.free))

    @cached_property
    def _spans(self) -> list[tuple[int, int, int]]:
        try:
            with Path(self.trace).open(newline="", encoding="utf-8") as file:
                return [(int(row["client"]), int(row["start"]), int(row["end"])) for row in csv.DictReader(file)]
        except (OSError, KeyError, ValueError, TypeError) as error:
            text = f"trace = {self.trace!r} is not a CSV file of whole numbers in client, start and end: {error}"
            raise ValueError(text) from None


@dataclass(frozen=True, kw_only=True)
class UnequalEpochs(Participation):
    """Clients drawn at random, each for a number of epochs of its own, drawn anew in every round.

    Args:
        least: fewest epochs.
        most: most epochs.
    """

    least: int = 1
    most: int = 5

    def __post_init__(self) -> None:
        require(1 <= self.least <= self.most, "least", self.least, f"from 1 to most = {self.most}")

    def choose(self, known: Known) -> tuple[Ints, Ints]:
        ids = known.draw(np.flatnonzero(known.free))
        return ids, known.rng.integers(self.least, self.most + 1, len(ids)) * known.batches[ids]


PARTICIPATIONS: dict[str, type[Participation]] = {
    "oort": Oort,
    "available": Available,
    "unequal-epochs": UnequalEpochs,
}
"""Choices of `participation.sampling`, beside those that only draw."""


@dataclass(frozen=True, eq=False)
class Turn:
    """A round's work: who is asked, whose answers arrive, how many steps each takes, since which round.

    `steps` and `started` have an entry for each client of the run; without a choice and a clock, both are None.
    """

    asked: Ints
    answering: Ints
    steps: Ints | None = None
    started: Ints | None = None

    def staleness(self, round_: int, ids: Ints) -> Ints:
        """Return how many rounds old the models are that these clients started from."""
        return np.zeros(len(ids), dtype=np.int64) if self.started is None else round_ - self.started[ids]

    def works(self, sent: Broadcast, clients: State) -> Iterator[tuple[Ints, Broadcast]]:
        """Yield groups of the clients whose answers arrive, with what they were sent when they started."""
        now = replace(sent, steps=self.steps)
        if self.started is None:
            yield self.answering, now
            return
        for start in np.unique(self.started[self.answering]).tolist():
            group = self.answering[self.started[self.answering] == start]
            yield group, now if start == sent.round else _recall(now, clients, start)


@dataclass(frozen=True, eq=False)
class Turns:
    """Plans the rounds of a run that has a choice or a clock. Its state is a `State` of the server.

    Args:
        options: those of `participation`.
        choice: who is asked; None for the options' draw.
        population: the federation.
        samples: of each client.
        counts: returns each client's samples of each class.
        seed: the run's.
    """

    options: ParticipationOptions
    choice: Participation | None
    population: Population
    samples: Ints
    counts: Callable[[], Ints]
    seed: int
    usual: Ints = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "usual", self.population.local_steps(self.samples))

    @cached_property
    def _slowness(self) -> Floats:
        """Seconds of a step of each client, if the median client needs one for its usual steps."""
        spread = self.options.speeds or 0.0
        speeds = np.exp(spread * generator(self.seed, Purpose.SPEED).normal(size=len(self.samples)))
        return 1.0 / (speeds * np.median(self.usual / speeds))

    def start(self) -> State:
        """Return the state before the first round."""
        never = {key: torch.full((len(self.samples),), NEVER) for key in ("last", "busy", "arrives")}
        losses = torch.full((len(self.samples),), torch.nan, dtype=torch.float64)
        steps, time = torch.from_numpy(self.usual.copy()), torch.zeros((), dtype=torch.float64)
        return {**never, "losses": losses, "steps": steps, "time": time}

    def take(self, clients: State, round_: int, drawn: Callable[[], Ints]) -> tuple[Turn, State]:
        """Return the work of a round, and the state in which its late clients are busy.

        Args:
            clients: the state after the round before.
            round_: the number of the round.
            drawn: returns the clients that the options draw.
        """
        kept = {key: value.clone() for key, value in clients.items() if not key.startswith(SENT)}
        now: dict[str, Any] = {key: value.numpy() for key, value in kept.items()}
        cohort, steps = self._choose_clients(now, round_, drawn)
        now["steps"][cohort] = steps
        answering = self.options.answering(cohort, self.seed, round_)
        started = np.where(now["busy"] >= 0, now["busy"], round_)
        arriving = np.flatnonzero((now["busy"] >= 0) & (now["arrives"] == round_))
        seconds = now["steps"][answering] * self._slowness[answering]
        if self.options.deadline is None:
            now["time"] += seconds.max(initial=0.0)
        else:
            now["time"] += self.options.deadline
            late = np.ceil(seconds / self.options.deadline - 1e-9).astype(np.int64) - 1
            staying = answering[(late > 0) & (late <= (self.options.staleness or 0))]
            now["busy"][staying] = round_
            now["arrives"][staying] = round_ + late[np.isin(answering, staying)]
            answering = answering[late <= 0]
        now["busy"][arriving] = NEVER
        turn = Turn(cohort, np.union1d(answering, arriving), now["steps"].copy(), started)
        return turn, {**kept, **{key: value for key, value in clients.items() if key.startswith(SENT)}}

    def after(
        self, clients: State, round_: int, ids: Ints, losses: Floats, sent: Callable[[], Broadcast]
    ) -> State:
        """Return the state after a round in which these clients took part; late ones keep what was `sent`."""
        state = {key: value.clone() if key in ("losses", "last") else value for key, value in clients.items()}
        state["losses"].numpy()[ids], state["last"].numpy()[ids] = losses, round_
        busy = {int(start) for start in state["busy"].unique()} - {NEVER}
        if round_ in busy:
            state |= {f"{SENT}{round_}/{key}": value.clone() for key, value in _parts(sent()).items()}
        return {k: v for k, v in state.items() if not k.startswith(SENT) or int(k.split("/")[1]) in busy}

    def _choose_clients(self, now: dict[str, Any], round_: int, drawn: Callable[[], Ints]) -> tuple[Ints, Ints]:
        free = now["busy"] < 0
        if self.choice is None:
            ids = drawn()
            return ids[free[ids]], self.usual[ids[free[ids]]]
        known = Known(
            round_,
            self.options.cohort_size(len(self.samples)),
            self.samples,
            self.population.batches(self.samples),
            self.usual,
            self.usual * self._slowness,
            now["losses"].copy(),
            now["last"].copy(),
            free,
            self.counts,
            generator(self.seed, Purpose.COHORT, round_),
        )
        return self._check_choice(self.choice.choose(known), free)

    def _check_choice(self, outcome: object, free: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return the ids, ascending, and the steps of each; raise unless the clients are free."""
        where = f"{type(self.choice).__qualname__}.choose returned"
        ids, steps = outcome if isinstance(outcome, tuple) and len(outcome) == 2 else (outcome, None)
        ids = np.asarray(ids)
        whole = ids.ndim == 1 and (ids.dtype.kind in "iu" or not len(ids))
        if not whole or len(np.unique(ids)) < len(ids) or (ids < 0).any() or (ids >= len(free)).any():
            raise ValueError(f"{where} {ids!r:.200}: it must return different ids from 0 to {len(free) - 1}")
        ids = ids.astype(np.int64)
        if not free[ids].all():
            raise ValueError(
                f"{where} client {ids[~free[ids]][0]}, which still works: known.free says who is free"
            )
        counts = self.usual[ids] if steps is None else np.asarray(steps)
        if counts.shape != ids.shape or counts.dtype.kind not in "iu" or (counts < 1).any():
            raise ValueError(
                f"{where} the steps {counts!r:.200}: it must return a whole number from 1 for each id"
            )
        order = np.argsort(ids)
        return ids[order], counts[order].astype(np.int64)


SENT = "sent/"
"""Prefix of what clients that are still at work were sent, by its round."""


def _parts(sent: Broadcast) -> State:
    lr = torch.tensor(sent.base_lr, dtype=torch.float64)
    message = {f"message/{key}": value for key, value in sent.message.items()}
    return {"x": sent.x, "buffers": sent.buffers, "lr": lr, **message}


def _recall(now: Broadcast, clients: State, start: int) -> Broadcast:
    """Return what was sent in an earlier round."""
    prefix = f"{SENT}{start}/"
    parts = {key.removeprefix(prefix): value for key, value in clients.items() if key.startswith(prefix)}
    message = {key.removeprefix("message/"): parts[key] for key in parts if key.startswith("message/")}
    x, buffers, lr = parts["x"], parts["buffers"], float(parts["lr"])
    return replace(now, round=start, x=x, buffers=buffers, message=message, base_lr=lr)
