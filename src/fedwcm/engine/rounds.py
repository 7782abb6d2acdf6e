"""The round loop: the only one in the package."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

from fedwcm.core.batch import Federation
from fedwcm.core.method import ClientChoice, ClientStatistics, StartingModel, TwoPhase
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Cohort, Fault, Ints, Report, State, Vec
from fedwcm.engine.backends.in_process import Backend
from fedwcm.engine.client import Broadcast, ClientTrainer, Task
from fedwcm.engine.hook_checks import check_ids
from fedwcm.engine.options import Aggregation, LearningRate, ParticipationOptions, ServerOptions
from fedwcm.engine.participation import Turn, Turns
from fedwcm.engine.server import RoundMeasures, RoundResult, Traffic, moving_average, update
from fedwcm.engine.server_data import ServerSamples
from fedwcm.engine.store import ClientStore
from fedwcm.engine.uploads import CohortUpdates, MethodUploads, UploadsLostError, merge_updates, receive


class Clock:
    """The seconds spent in each phase since the last call of `read`."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of this block to the phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - start

    def read(self) -> dict[str, float]:
        """Return the seconds spent in each phase, and reset them to 0."""
        spent, self._spent = self._spent, {}
        return spent


T = TypeVar("T")

CLIPPED = "clipped"
"""Entry of a report that says whether the client has scaled its increment down itself."""

WIRE_BYTES = "wire_bytes"
"""Entry of a report with the bytes that a compressed upload would take; counted where nothing is really sent."""


class DivergedError(RuntimeError):
    """The model has a NaN or an infinity: training cannot go on."""


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that a round needs from the one before, besides the clients' own state.

    `average` is the moving average of the models after each round, if there is one; `max_norm` is the bound on the
    increments of the next round. `turns` is what is known of the clients, where they are chosen or have a clock.
    """

    round: int
    x: Vec
    buffers: Vec
    method: State
    average: State = field(default_factory=dict)
    max_norm: float | None = None
    turns: State = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Rounds:
    """Steps through rounds: sample clients, let them train, update the model. State comes in and goes out.

    `statistics` is what the clients reported once, for methods with `ClientStatistics`; without it, it is computed
    from the counts of the federation, which only a simulator has. So many `faulty` clients of a round may upload
    a NaN without the run ending as diverged: none in a simulator, where a NaN always means divergence. `own_data`
    is the server's, for methods with `ServerTraining`.
    """

    trainer: ClientTrainer
    federation: Federation
    participation: ParticipationOptions
    backend: Backend
    store: ClientStore
    learning_rate: LearningRate
    statistics: Report | None = None
    aggregation: Aggregation = field(default_factory=Aggregation)
    server: ServerOptions = field(default_factory=ServerOptions)
    faulty: int = 0
    turns: Turns | None = None
    own_data: ServerSamples | None = None
    clock: Clock = field(default_factory=Clock, kw_only=True)

    def start(self, x: Vec, buffers: Vec) -> ServerState:
        """Return the state before the first round."""
        method, population = self.trainer.method, self.trainer.population
        if isinstance(method, StartingModel):
            x = method.starting_model(x, self.trainer.forward.network.layout)
        s = method.init(x, population)
        if isinstance(method, ClientStatistics):
            reported = self.statistics
            if reported is None:
                reported = self.trainer.statistics(np.arange(population.clients), self.federation.counts)
            s = method.with_statistics(s, reported)
        turns = {} if self.turns is None else self.turns.start()
        return ServerState(0, x, buffers, s, max_norm=self.aggregation.max_norm, turns=turns)

    def step(self, before: ServerState, *, recorded: bool = True) -> tuple[ServerState, RoundMeasures]:
        """Run one round; return the state after it and its measures. Without answers, nothing changes.

        Of a round that is not `recorded`, the clients' accuracy and the list of their weights are left out.
        """
        r = before.round
        turn, before = self._turn(before)
        traffic = Traffic(len(turn.asked))
        trained = self._train(before, turn, traffic, recorded)
        measures = traffic.measures()
        turns = self._turns_after(before, trained)
        if trained is None:
            unchanged = replace(before, round=r + 1, turns=turns)
            return self._with_average(unchanged) if before.average else unchanged, measures
        result, after = trained
        _require_finite({"model": after.x, "model's buffers": after.buffers, **after.state}, r)
        self.store.commit(r + 1, result.ids)
        measures = measures.of_training(result, after)
        if recorded:
            measures = measures.with_weights(result, after)
        if after.bound is not None:
            clipping = {"clipped_clients": after.clipped, "max_norm": after.bound}
            measures = replace(measures, extra={**measures.extra, **clipping})
        bound = self.aggregation.next_bound(before.max_norm, after.clipped / len(result.ids))
        after_round = ServerState(r + 1, after.x, after.buffers, after.state, before.average, bound, turns)
        return self._with_average(after_round), self._with_time(measures, turn, result.ids, after_round)

    def _turn(self, before: ServerState) -> tuple[Turn, ServerState]:
        """Return who works in a round, and the state in which clients that will be late are busy."""
        if self.turns is None:
            sampled = self._sample_clients(before)
            return Turn(sampled, self.participation.answering(sampled, self.trainer.seed, before.round)), before
        turn, turns = self.turns.take(before.turns, before.round, lambda: self._sample_clients(before))
        return turn, replace(before, turns=turns)

    def _turns_after(self, before: ServerState, trained: tuple[CohortUpdates, RoundResult] | None) -> State:
        """Return what is known of the clients after a round."""
        if self.turns is None:
            return {}
        r, none = before.round, np.zeros(0)
        ids, losses = (none.astype(np.int64), none) if trained is None else (trained[0].ids, trained[0].loss)

        def sent() -> Broadcast:
            message = self.trainer.method.broadcast(before.method)
            return Broadcast(r, before.x, before.buffers, message, self._lr(r))

        return self.turns.after(before.turns, r, ids, losses, sent)

    def _with_time(self, measures: RoundMeasures, turn: Turn, ids: Ints, after: ServerState) -> RoundMeasures:
        """Return the measures with the time on the simulated clock and the mean age of the answers."""
        if self.turns is None or not self.participation.has_clock:
            return measures
        age = float(turn.staleness(after.round - 1, ids).mean())
        time = {"simulated_time": float(after.turns["time"]), "staleness": age}
        return replace(measures, extra={**measures.extra, **time})

    def _sample_clients(self, before: ServerState) -> Ints:
        """Return the ids of the clients asked to train, ascending: by the method's choice if it makes one."""
        method, clients = self.trainer.method, self.trainer.population.clients
        if not isinstance(method, ClientChoice):
            return self.participation.sample(clients, self.trainer.seed, before.round, self.reported_counts)
        rng = generator(self.trainer.seed, Purpose.COHORT, before.round)
        size = self.participation.cohort_size(clients)
        return check_ids(method.choose, method.choose(before.method, size, self.federation.samples, rng), clients)

    def last_model(self, state: ServerState) -> tuple[Vec, Vec]:
        """Return the parameters and buffers of the model after the last round, as the method evaluates it."""
        return self.trainer.method.eval_params(state.x, state.method), state.buffers

    def model(self, state: ServerState) -> tuple[Vec, Vec]:
        """Return the model to evaluate and hand over: the average over the rounds, if there is one."""
        return (state.average["x"], state.average["buffers"]) if state.average else self.last_model(state)

    def _with_average(self, state: ServerState) -> ServerState:
        if not self.server.ema:
            return state
        average = moving_average(state.average, *self.last_model(state), self.server.ema)
        return replace(state, average=average)

    def _train(
        self, before: ServerState, turn: Turn, traffic: Traffic, recorded: bool
    ) -> tuple[CohortUpdates, RoundResult] | None:
        """Run the round's phases; return whose uploads were used and what came of them; None without any."""
        method = self.trainer.method
        s = self._probe(before, turn, traffic) if isinstance(method, TwoPhase) else before.method
        if s is None:
            return None
        result = self._ask("train", before, method.broadcast(s), turn, traffic, recorded)
        if result is None:
            return None
        with self.clock.phase("server"):
            return self._use_uploads(
                turn, before.round, result, traffic, lambda kept, cohort: self._update(before, s, kept, cohort)
            )

    def _probe(self, before: ServerState, turn: Turn, traffic: Traffic) -> State | None:
        """Run the first phase; return the server state with which the round goes on, None if nobody answered."""
        method = self.trainer.method
        assert isinstance(method, TwoPhase)
        result = self._ask("probe", before, method.probe_broadcast(before.method), turn, traffic, False)
        if result is None:
            return None

        def after(kept: CohortUpdates, cohort: Cohort) -> State:
            return method.after_probe(before.method, MethodUploads(kept.uploads, method), cohort)

        used = self._use_uploads(turn, before.round, result, traffic, after)
        return None if used is None else used[1]

    def _update(self, before: ServerState, s: State, result: CohortUpdates, cohort: Cohort) -> RoundResult:
        """Return what the method makes of the uploads."""
        bounds = replace(self.aggregation, max_norm=before.max_norm)
        received = receive(bounds, result.uploads, before.buffers)
        clipped = int(result.report[CLIPPED].sum()) if CLIPPED in result.report else received.clipped
        uploads = MethodUploads(received.uploads, self.trainer.method)
        after = update(self.trainer.method, before.x, before.buffers, s, uploads, cohort, self.own_data)
        return replace(after, bound=received.bound, clipped=clipped)

    def _use_uploads(
        self,
        turn: Turn,
        r: int,
        result: CohortUpdates,
        traffic: Traffic,
        use: Callable[[CohortUpdates, Cohort], T],
    ) -> tuple[CohortUpdates, T] | None:
        """Return what `use` makes of the uploads, and whose they were; None if there are none.

        Clients whose uploads are lost while they are summed are left out, and the others used once more.
        """
        while len(result.ids):
            try:
                outcome = use(result, self._cohort(turn, r, result))
            except UploadsLostError as lost:
                traffic.count_uploads(self._bytes(result), lost.clients)
                result = result.without(lost)
                continue
            traffic.count_uploads(self._bytes(result), {})
            return result, outcome
        return None

    def _bytes(self, result: CohortUpdates) -> int:
        """Return the bytes of the uploads; in a simulator, of their compressed form if clients report it."""
        compressed = None if self.faulty else result.report.get(WIRE_BYTES)
        return result.uploads.bytes if compressed is None else int(compressed.sum())

    def _ask(
        self, task: Task, before: ServerState, message: State, turn: Turn, traffic: Traffic, recorded: bool
    ) -> CohortUpdates | None:
        """Send the model and a message to the sampled clients, and let those that answer do their task."""
        lr = self._lr(before.round)
        sent = Broadcast(before.round, before.x, before.buffers, message, lr, before.max_norm, recorded)
        traffic.count_broadcast(sent)
        if not len(turn.answering):
            return None
        with self.clock.phase("clients"):
            parts = [self.backend.run(task, ids, what) for ids, what in turn.works(sent, before.turns)]
            result = parts[0] if len(parts) == 1 else merge_updates(parts)
        traffic.count_reports(result)
        self._require_mostly_finite(result, len(turn.answering), before.round)
        return result

    def _require_mostly_finite(self, result: CohortUpdates, clients: int, r: int) -> None:
        """Raise if at least half of the updates are not finite: that is no faulty client, training has diverged.

        Half of the clients asked, not of those that answered: otherwise one faulty client among few answers would
        end the run.
        """
        refused = sum(reason.fault is Fault.NOT_FINITE for reason in result.left_out.values())
        if refused > self.faulty and 2 * refused >= clients:
            raise DivergedError(f"{refused} of {clients} updates have a NaN or an infinity in round {r + 1}")

    def reported_counts(self) -> Ints:
        """Return the class counts that the clients report."""
        noisy = self.trainer.disclosure.noisy_counts
        return self.federation.counts if noisy is None else np.stack([noisy[k] for k in range(len(noisy))])

    def _lr(self, r: int) -> float:
        return self.learning_rate.at(r, self.trainer.population.rounds)

    def _cohort(self, turn: Turn, r: int, result: CohortUpdates) -> Cohort:
        samples = self.federation.samples[result.ids]
        return Cohort(
            round=r,
            ids=result.ids,
            samples=samples,
            steps=self.trainer.population.local_steps(samples) if turn.steps is None else turn.steps[result.ids],
            base_lr=self._lr(r),
            learning_rates=result.learning_rates,
            report=result.report,
            population=self.trainer.population,
            layout=self.trainer.forward.network.layout,
            rng=generator(self.trainer.seed, Purpose.SERVER, r),
            told_losses=result.loss if self.trainer.method.reads_losses else None,
            staleness=turn.staleness(r, result.ids),
            max_share=self.aggregation.max_share,
        )


def _require_finite(state: State, r: int) -> None:
    """Raise unless everything that the server keeps after a round is finite."""
    for name, value in state.items():
        if not _finite(value):
            raise DivergedError(f"the {name} has a NaN or an infinity after round {r + 1}")


def _finite(x: Vec) -> bool:
    """Return whether every number is finite. A finite sum says so at once; another may have overflowed."""
    return not x.is_floating_point() or bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())
