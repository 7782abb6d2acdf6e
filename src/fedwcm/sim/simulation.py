"""The round loop: the only one in the package."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedwcm.core.federation import Federation
from fedwcm.core.local import Broadcast, LocalResult, LocalTraining
from fedwcm.core.participation import Participation
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.server import Outcome, combine, update
from fedwcm.core.types import Cohort, Floats, Ints, State, Vec, bytes_of
from fedwcm.sim.backend import Backend
from fedwcm.sim.store import ClientStore


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
class Simulation:
    """Plays rounds: sample clients, let them train, update the model. State comes in and goes out."""

    training: LocalTraining
    federation: Federation
    participation: Participation
    backend: Backend
    store: ClientStore
    lr: float
    lr_decay: float

    def start(self, x: Vec, buffers: Vec) -> ServerState:
        """The state before the first round; every client is surveyed once."""
        method, population = self.training.method, self.training.population
        survey = method.survey(self.federation.counts, population)
        return ServerState(0, x, buffers, method.init(x, population, survey))

    def play(self, before: ServerState) -> tuple[ServerState, dict[str, object]]:
        """One round: the state after it, and what is worth recording. A round without answers changes nothing."""
        method, seed, r = self.training.method, self.training.seed, before.round
        sampled = self.participation.sampled(self.training.population.clients, seed, r)
        ids = self.participation.answering(sampled, seed, r)
        lr = self.lr * self.lr_decay**r
        probed, probe_bytes = self._probe(before, ids, lr)
        message = method.message(before.method, probed)
        sent = Broadcast(r, before.x, before.buffers, message, lr)
        down = bytes_of({"x": sent.x, "buffers": sent.buffers}) + bytes_of(message)
        record = {"participants": len(ids), "bytes_down": down * len(sampled) + probe_bytes[0] * len(sampled)}
        if not len(ids):
            return replace(before, round=r + 1), {**record, "bytes_up": 0}
        result = self.backend.run("train", ids, sent)
        after = update(
            method,
            before.x,
            before.buffers,
            before.method,
            probed,
            result.upload,
            self._cohort(r, ids, lr, result),
        )
        if not bool(torch.isfinite(after.x).all()):
            raise DivergedError(f"the model has a NaN or an infinity after round {r + 1}")
        record["bytes_up"] = bytes_of(result.upload) + 8 * len(ids) * len(result.report) + probe_bytes[1]
        return ServerState(r + 1, after.x, after.buffers, after.state), {**record, **_measures(result, after)}

    def _probe(self, before: ServerState, ids: Ints, lr: float) -> tuple[State, tuple[int, int]]:
        """The first phase of methods that have one, combined, with its bytes down (a client) and up."""
        method = self.training.method
        if not method.probes or not len(ids):
            return {}, (0, 0)
        message = method.probe_message(before.method)
        result = self.backend.run("probe", ids, Broadcast(before.round, before.x, before.buffers, message, lr))
        cohort = self._cohort(before.round, ids, lr, result)
        probed = combine(result.upload, method.combine_probe(before.method, cohort))
        return probed, (bytes_of({"x": before.x}) + bytes_of(message), bytes_of(result.upload))

    def _cohort(self, r: int, ids: Ints, lr: float, result: LocalResult) -> Cohort:
        return Cohort(
            round=r,
            ids=ids,
            samples=self.federation.samples[ids],
            steps=self.training.steps(self.federation.samples[ids]),
            base_lr=lr,
            learning_rates=result.learning_rates,
            report=result.report,
            population=self.training.population,
            network=self.training.forward.network,
            rng=generator(self.training.seed, Purpose.SERVER, r),
        )


def _measures(result: LocalResult, after: Outcome) -> dict[str, object]:
    return {
        "train_loss": float(np.mean(result.loss)),
        "train_accuracy": float(np.mean(result.accuracy)),
        "weights_entropy": _entropy(after.weights),
        **after.diagnostics,
    }


def _entropy(weights: Floats) -> float:
    """Entropy in nats of the clients' weights: log m when they are even, 0 when one client is all."""
    p = weights[weights > 0] / weights.sum()
    return float(-(p * np.log(p)).sum())
