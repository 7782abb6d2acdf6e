"""How much time and memory a comparison will take, from a short trial of each of its methods."""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedwcm.config.schema import Config
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.build import Experiment, build
from fedwcm.experiment.runner import Runner
from fedwcm.sweeps.execution import process_context
from fedwcm.sweeps.plan import PlannedRun, is_done
from fedwcm.utils.child_process import ChildDiedError, call_in_child
from fedwcm.utils.text import duration

TRIAL_ROUNDS = 2
"""Rounds of a trial: the first warms up, the last is measured."""

MODEL = (
    "Estimated from a trial of two rounds of each row on this machine. Time: loading + rounds × the second round "
    "+ evaluations × its evaluation. Memory: the trial's peak, workers counted in full, + the state of all "
    "clients. Runs at the same time are taken not to slow each other down."
)


@dataclass(frozen=True)
class Cost:
    """What one run is expected to take."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Estimate:
    """The runs that one label still needs, and what each takes; a text if the trial failed."""

    label: str
    rounds: int
    runs: int
    finished: int
    cost: Cost | str | None


@dataclass(frozen=True)
class Forecast:
    """The runs of a comparison, and the time and memory that they are expected to take."""

    rows: tuple[Estimate, ...]
    jobs: int

    @property
    def total(self) -> Cost:
        """The whole comparison: the work shared evenly by the jobs, and the largest runs in memory together."""
        each = [
            row.cost for row in self.rows if isinstance(row.cost, Cost) for _ in range(row.runs - row.finished)
        ]
        longest = max((cost.seconds for cost in each), default=0.0)
        together = sorted((cost.bytes for cost in each), reverse=True)[: self.jobs]
        return Cost(max(longest, sum(cost.seconds for cost in each) / self.jobs), sum(together))

    def __str__(self) -> str:
        cells = [("method", "seeds", "rounds", "time per run", "memory"), *map(_cells, self.rows)]
        name, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
        lines = ["  ".join([row[0].ljust(name), *map(str.rjust, row[1:], widths)]) for row in cells]
        runs, finished = sum(row.runs for row in self.rows), sum(row.finished for row in self.rows)
        done = f" ({finished} of them finished)" if finished else ""
        at_a_time = f", {self.jobs} at a time" if self.jobs > 1 else ""
        cost = f"about {_time(self.total.seconds)}, {_gigabytes(self.total.bytes)} of memory"
        return "\n".join([*lines, "", f"{runs} run{'s' * (runs != 1)}{done}{at_a_time}: {cost}.", MODEL])


def _cells(row: Estimate) -> tuple[str, ...]:
    seeds = f"{row.runs}" + (f" ({row.finished} done)" if row.finished else "")
    if isinstance(row.cost, Cost):
        return row.label, seeds, str(row.rounds), _time(row.cost.seconds), _gigabytes(row.cost.bytes)
    return row.label, seeds, str(row.rounds), row.cost or "–", "–"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def forecast(planned_runs: Sequence[PlannedRun], jobs: int) -> Forecast:
    """Return one estimate per label, in the order of the comparison; labels without runs to come have no cost."""
    rows = []
    for label in dict.fromkeys(planned.label for planned in planned_runs):
        members = [planned for planned in planned_runs if planned.label == label]
        waiting = [planned for planned in members if not is_done(planned)]
        cost = _cost(waiting[0].config, jobs) if waiting else None
        rounds = members[0].config.run.rounds
        rows.append(Estimate(label, rounds, len(members), len(members) - len(waiting), cost))
    return Forecast(tuple(rows), jobs)


def _cost(config: Config, jobs: int) -> Cost | str:
    """Measure in a process of its own, so that one trial's memory does not count for the next."""
    try:
        return call_in_child(process_context(), _trial, config, jobs)
    except ChildDiedError as error:
        return f"the trial {error}"


def _trial(config: Config, jobs: int) -> Cost | str:
    try:
        return _measure(config, jobs)
    except DivergedError as error:
        return f"diverges: {error}"
    except (ValueError, OSError) as error:
        return str(error)


def _measure(config: Config, jobs: int) -> Cost:
    began = time.perf_counter()
    options = replace(config.run, rounds=TRIAL_ROUNDS, eval_every=1, profile=True, track=())
    if options.backend == "ray":  # the trial runs on this machine
        options = replace(options, backend="auto")
    if jobs > 1:
        torch.set_num_threads(1)
        options = replace(options, workers=1)
    experiment = build(replace(config, run=options))
    loading = time.perf_counter() - began
    first, last = Runner(experiment, None).run().history
    evaluation = last.number("phase_seconds", "evaluation") or 0.0
    training = last.seconds - first.seconds - evaluation
    evaluations = math.ceil(config.run.rounds / config.run.eval_every)
    seconds = loading + config.run.rounds * training + evaluations * evaluation
    return Cost(seconds, _peak_bytes(experiment.execution.workers) + _client_bytes(experiment))


def _peak_bytes(workers: int) -> int:
    """Return the peak memory of this process and its workers, each counted as the largest; 0 if not measured."""
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if workers > 1 else 0
    return unit * (own + workers * worker)


def _client_bytes(experiment: Experiment) -> int:
    """Return the state of the clients that have not taken part in the trial."""
    store = experiment.rounds.store
    clients = experiment.rounds.trainer.population.clients
    return store.bytes_per_client * (clients - len(store.visited_clients()))
