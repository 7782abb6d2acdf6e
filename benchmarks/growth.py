"""How cost grows: rounds with clients, parameters and classes, comparisons and reports with runs.

    python -m benchmarks.run --groups growth

Processor time of this process and its children, so that a busy machine changes little. A curve is linear if its
exponent, the slope between the last two sizes on logarithmic axes, is at most 1; fixed costs make it smaller.
"""

import json
import math
import resource
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fedwcm
from benchmarks.marks import Marks

FEATURES, CLASSES, ROUNDS = 64, 10, 4
RUNS: Any = {"dataset": "digits", "clients": 4, "rounds": 1, "epochs": 1, "participation": 0.5}
Curve = list[tuple[int, float]]


def measure() -> dict[str, Curve]:
    """Measure all curves."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        compared = _curve((1, 10, 100, 500), lambda runs: _compare(place, runs))
        return {
            "a round, by its clients": _curve((10, 100, 1000, 10_000), _clients),
            "a round of two clients, by parameters": _curve((10**4, 10**5, 10**6, 10**7), _parameters),
            "a round and its evaluation, by classes": _curve((10, 100, 1000), lambda n: _classes(place, n)),
            "`compare`, by its runs": compared,
            "`report`, by its runs": _curve((10, 100, 500), lambda runs: _report(place, runs)),
            "a Flower server's search for outliers, by clients": _curve((10, 100, 1000, 10_000), _outliers),
        }


def exponent(curve: Sequence[Sequence[float]]) -> float:
    """Return the slope between the last two points on logarithmic axes."""
    (size, seconds), (larger, more) = curve[-2:]
    return math.log(more / seconds) / math.log(larger / size)


def _curve(sizes: Sequence[int], seconds: Callable[[int], float]) -> Curve:
    return [(size, float(f"{seconds(size):.3g}")) for size in sizes]


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _timed(work: Callable[[], object]) -> float:
    began = _cpu()
    work()
    return _cpu() - began


def _round(**options: Any) -> float:
    """Return what a round takes, the first left out."""
    marks = Marks(_cpu)
    fedwcm.run("fedwcm", rounds=ROUNDS, epochs=1, backend="vectorized", progress=marks, **options)
    return median(marks.steps(1)[0])


def _clients(number: int) -> float:
    return _round(
        dataset="synthetic",
        clients=number,
        participation=1.0,
        model="mlp",
        settings={"run.eval_every": ROUNDS + 1},
    )


def _parameters(number: int) -> float:
    hidden = [number // (FEATURES + CLASSES + 1)]
    settings = {"model.hidden": hidden, "run.eval_every": ROUNDS + 1}
    return _round(dataset="synthetic", clients=4, participation=0.5, model="mlp", settings=settings)


def _classes(folder: Path, number: int) -> float:
    rng, labels = np.random.default_rng(0), np.arange(4000) % number
    inputs = rng.normal(size=(len(labels), FEATURES)).astype(np.float32)
    file = folder / f"classes-{number}.npz"
    np.savez(file, x_train=inputs, y_train=labels, x_test=inputs, y_test=labels)
    return _round(dataset=str(file), imbalance="none", partition="iid", clients=10, participation=0.5, model="mlp")


def _compare(folder: Path, runs: int) -> float:
    seeds = list(range(max(1, runs // 2)))
    methods = ["fedavg", "fedwcm"][: min(2, runs)]
    out = folder / f"compared-{runs}"
    return _timed(lambda: fedwcm.compare(methods, seeds, out, report=False, progress=False, **RUNS))


def _report(folder: Path, runs: int) -> float:
    return _timed(lambda: fedwcm.report(folder / f"compared-{runs}", out=folder / f"report-{runs}.html"))


def _outliers(clients: int) -> float:
    from fedwcm.flower.server.directory import usual_of_others

    norms = np.random.default_rng(0).random(clients)
    return _timed(lambda: [usual_of_others(norms) for _ in range(100)]) / 100


if __name__ == "__main__":
    print(json.dumps({"curves": measure()}), flush=True)
