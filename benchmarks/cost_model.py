"""How long a round takes on a cluster, from a few constants: what docs/scale.md predicts.

python -m benchmarks.cost_model
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2

from benchmarks.environments import HERE
from benchmarks.tables import table

RESULTS = HERE / "results" / "latest.json"
WORKERS = (1, 8, 64, 512)
BANDWIDTH = 1.25e9
"""Bytes a second in and out of a node: ten gigabits."""
PER_NODE = 8


@dataclass(frozen=True)
class Load:
    """The clients of a round, the seconds that each trains, the size of their model, how many are stacked."""

    name: str
    clients: int
    seconds: float
    parameters: int
    stacked: int = 1
    sums: int = 1


LOADS = (
    Load("ResNet-18 (J2), 1,000 clients a round", 1000, 2.46, 11_181_642),
    Load("MLP (J1), 1,000 clients a round", 1000, 0.017, 199_210, stacked=21),
)
"""A client takes two tenths of a round of docs/performance.md, where two workers train ten."""


@dataclass(frozen=True)
class RoundCost:
    """Seconds of a round, part by part. Handing clients out goes on while others train: the longer one counts."""

    training: float
    driver: float
    broadcast: float
    adding: float
    tree: float

    @property
    def seconds(self) -> float:
        return max(self.training, self.driver) + self.broadcast + self.adding + self.tree


def round_cost(load: Load, workers: int, costs: Mapping[str, float], bandwidth: float = BANDWIDTH) -> RoundCost:
    """The model. Every node of the tree, the server at its root, receives the sums of two others in turn."""
    each = ceil(load.clients / workers)
    levels = ceil(log2(workers / 2 + 1))
    sent = 2 * 8 * load.parameters / bandwidth if workers > 1 else 0.0
    return RoundCost(
        training=each * load.seconds,
        driver=ceil(load.clients / min(load.stacked, each)) * costs["driver_seconds_per_block"],
        broadcast=ceil(workers / PER_NODE) * 4 * load.parameters / bandwidth,
        adding=load.sums * each * load.parameters * costs["sum_seconds_per_number"],
        tree=load.sums * levels * (sent + costs["call_seconds"]),
    )


def forecast(load: Load, costs: Mapping[str, float]) -> str:
    """A line for each number of workers."""
    alone = round_cost(load, 1, costs).seconds
    rows = []
    for workers in WORKERS:
        cost = round_cost(load, workers, costs)
        parts = (cost.training, cost.driver, cost.broadcast, cost.adding, cost.tree, cost.seconds)
        efficiency = alone / cost.seconds / workers
        rows.append((str(workers), *(f"{part:.3g}" for part in parts), f"{efficiency:.0%}"))
    head = ("workers", "training", "driver", "broadcast", "adding", "tree", "round, s", "efficiency")
    return table(head, rows)


def main() -> None:
    """Print the constants that were measured, and what they predict."""
    costs = json.loads(RESULTS.read_text(encoding="utf-8"))["cluster"]["constants"]
    print(json.dumps(costs, indent=1))
    for load in LOADS:
        print(f"\n{load.name}\n\n{forecast(load, costs)}")


if __name__ == "__main__":
    main()
