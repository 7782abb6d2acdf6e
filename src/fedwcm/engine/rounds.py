"""The round loop: the only one in the package."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Cohort, Floats, Ints, State, Vec, bytes_of
from fedwcm.engine.backends.in_process import Backend
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates
from fedwcm.engine.clock import Clock
from fedwcm.engine.federation import Federation
from fedwcm.engine.participation import Participation
from fedwcm.engine.server import RoundResult, combine, update
from fedwcm.engine.store import ClientStore

LISTED_CLIENTS = 200
"""Clients of a round up to which each one's weight is recorded."""


class DivergedError(RuntimeError):
    """The model has a NaN or an infinity: training cannot go on."""


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that a round needs from the one before, besides the clients' own state."""

    round: int
    x: Vec
    buffers: Vec
    method: State


@dataclass(frozen=True, eq=False)
class Rounds:
    """Plays rounds: sample clients, let them train, update the model. State comes in and goes out."""

    training: ClientTrainer
    federation: Federation
    participation: Participation
    backend: Backend
    store: ClientStore
    lr: float
    lr_decay: float
    clock: Clock = field(default_factory=Clock, kw_only=True)

    def start(self, x: Vec, buffers: Vec) -> ServerState:
        """The state before the first round; every client is surveyed once."""
        method, population = self.training.method, self.training.population
        survey = method.survey(self.federation.counts, population)
        return ServerState(0, x, buffers, method.init(x, population, survey))

    def play(self, before: ServerState) -> tuple[ServerState, dict[str, object]]:
        """One round: the state after it, and what is worth recording. A round without answers changes nothing."""
        method, seed, r = self.training.method, self.training.seed, before.round
        sampled = self.participation.sampled(self.training.population.clients, seed, r)
        asked = self.participation.answering(sampled, seed, r)
        lr = self.lr * self.lr_decay**r
        traffic = Traffic(len(sampled))
        probed = self._probe(before, asked, lr, traffic) if method.probes else {}
        result = None
        if probed is not None:
            sent = Broadcast(r, before.x, before.buffers, method.message(before.method, probed), lr)
            traffic.sent(sent)
            if len(asked):
                with self.clock.phase("clients"):
                    result = self.backend.run("train", asked, sent)
                traffic.answered(result)
        if result is None or not len(result.ids):
            return replace(before, round=r + 1), {"participants": 0, **traffic.record()}
        cohort = self._cohort(r, lr, result)
        with self.clock.phase("server"):
            after = update(method, before.x, before.buffers, before.method, probed or {}, result.upload, cohort)
        if not _finite(after.x):
            raise DivergedError(f"the model has a NaN or an infinity after round {r + 1}")
        self.store.commit(r + 1)
        told = {**traffic.record(), **_measures(result, after), **_listed(result, after)}
        return ServerState(r + 1, after.x, after.buffers, after.state), {"participants": len(cohort), **told}

    def _probe(self, before: ServerState, asked: Ints, lr: float, traffic: "Traffic") -> State | None:
        """The first phase, of methods that have one, combined; None if nobody answered."""
        method = self.training.method
        sent = Broadcast(before.round, before.x, before.buffers, method.probe_message(before.method), lr)
        traffic.sent(sent)
        if not len(asked):
            return None
        with self.clock.phase("clients"):
            result = self.backend.run("probe", asked, sent)
        traffic.answered(result)
        if not len(result.ids):
            return None
        return combine(result.upload, method.combine_probe(before.method, self._cohort(before.round, lr, result)))

    def _cohort(self, r: int, lr: float, result: ClientUpdates) -> Cohort:
        samples = self.federation.samples[result.ids]
        return Cohort(
            round=r,
            ids=result.ids,
            samples=samples,
            steps=self.training.steps(samples),
            base_lr=lr,
            learning_rates=result.learning_rates,
            report=result.report,
            population=self.training.population,
            network=self.training.forward.network,
            rng=generator(self.training.seed, Purpose.SERVER, r),
        )


class Traffic:
    """Bytes of a round: what every sampled client is sent, and what those that answer send back."""

    def __init__(self, sampled: int) -> None:
        self._sampled, self._down, self._up = sampled, 0, 0

    def sent(self, sent: Broadcast) -> None:
        self._down += self._sampled * (bytes_of({"x": sent.x, "buffers": sent.buffers}) + bytes_of(sent.message))

    def answered(self, result: ClientUpdates) -> None:
        """A number of the report takes 8 bytes."""
        self._up += bytes_of(result.upload) + 8 * len(result.ids) * len(result.report)

    def record(self) -> dict[str, object]:
        return {"bytes_down": self._down, "bytes_up": self._up}


def _finite(x: Vec) -> bool:
    """Whether every number is finite. A finite sum says so at once; an infinite one may only have overflowed."""
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def _measures(result: ClientUpdates, after: RoundResult) -> dict[str, object]:
    return {
        "train_loss": float(np.mean(result.loss)),
        "train_accuracy": float(np.mean(result.accuracy)),
        "weights_entropy": _entropy(after.weights),
        **after.diagnostics,
    }


def _listed(result: ClientUpdates, after: RoundResult) -> dict[str, object]:
    """Who took part and how much each counted, to six digits; nothing of a large cohort."""
    if len(result.ids) > LISTED_CLIENTS:
        return {}
    return {"clients": result.ids.tolist(), "weights": [float(f"{weight:.6g}") for weight in after.weights]}


def _entropy(weights: Floats) -> float:
    """Entropy in nats of the clients' weights: log m when they are even, 0 when one client is all."""
    p = weights[weights > 0] / weights.sum()
    return float(-(p * np.log(p)).sum())
