"""This package, as its users call it: `fedwcm.run`, which tells of every round.

python -m benchmarks.contenders.ours JOB ROUNDS [--method M] [--backend B] [--workers N] [--precision P]
    [--clients N] [--evaluate] [--checkpoint-every N]
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import fedwcm
from benchmarks.gate import Gate
from benchmarks.jobs import JOBS
from benchmarks.training import load, quality
from fedwcm.experiment.records import RoundRecord


class Gated:
    """A progress report that stops at the gate before every round."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def start(self, title: str, rounds: int, done: int) -> None:
        self._rounds = rounds
        self._gate.wait()

    def round(self, number: int, record: RoundRecord) -> None:
        if number < self._rounds:
            self._gate.wait()

    def close(self) -> None:
        pass


def main() -> None:
    """Play the rounds. Without `--evaluate` only the last one, which is not timed, ends with an evaluation."""
    options = _options()
    job, gate = JOBS[options.job], Gate()
    job = replace(job, clients=options.clients or job.clients)
    settings = job.settings() | {
        "run.rounds": options.rounds,
        "run.backend": options.backend,
        "run.workers": options.workers,
        "run.precision": options.precision,
        "run.eval_every": 1 if options.evaluate else options.rounds,
        "run.checkpoint_every": options.checkpoint_every or options.rounds,
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run" if options.checkpoint_every else None
        result = fedwcm.run(options.method, settings=settings, out=out, progress=Gated(gate))
    if job.addressed:
        last = result.history[-1]
        assert last.train_loss is not None
        assert last.train_accuracy is not None
        gate.finish(loss=last.train_loss, accuracy=last.train_accuracy)
    else:
        gate.finish(**quality(result.model, load(job)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--checkpoint-every", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
