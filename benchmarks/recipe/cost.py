"""What the parts of the recipe cost in processor time, against cross-entropy and the last model.

    python -m benchmarks.recipe.cost [--rounds N]

The job is J1 of the benchmark: Fashion-MNIST, 100 clients of 245 samples, 10 a round, 5 epochs of batches of 50,
784-200-200-10. Rounds of all variants are interleaved in an order that changes every sweep, in one thread.
"""

import argparse
import random
import statistics
import time

import torch

from fedwcm.config.settings import from_settings
from fedwcm.experiment.build import build

J1: dict[str, object] = {
    "data.dataset": "fashion-mnist",
    "partition.name": "equal",
    "partition.clients": 100,
    "participation.fraction": 0.1,
    "model.name": "mlp",
    "method.name": "fedwcm",
    "run.backend": "vectorized",
}
PRIOR: dict[str, object] = {"loss.name": "prior_ce", "loss.prior": "global"}
NORMALIZED: dict[str, object] = {**PRIOR, "loss.normalize": True, "loss.scale": 10.0}
VARIANTS: dict[str, dict[str, object]] = {
    "cross-entropy": {},
    "prior_ce": PRIOR,
    "prior_ce, normalised": NORMALIZED,
    "prior_ce, normalised, with an average over rounds": {**NORMALIZED, "server.ema": 0.9},
}


def main() -> None:
    """Print the median processor time of a round of every variant, and its ratio to cross-entropy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    sweeps = parser.parse_args().rounds
    torch.set_num_threads(1)
    experiments = {name: build(from_settings({**J1, **options})) for name, options in VARIANTS.items()}
    states = {name: made.rounds.start(made.x, made.buffers) for name, made in experiments.items()}
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    order = list(VARIANTS)
    for sweep in range(sweeps + 2):
        random.Random(sweep).shuffle(order)
        for name in order:
            began = time.process_time()
            states[name], _ = experiments[name].rounds.step(states[name])
            if sweep >= 2:
                seconds[name].append(time.process_time() - began)
    print("| loss | CPU seconds a round | against cross-entropy |\n|---|---|---|")
    for name, measured in seconds.items():
        ratios = [a / b for a, b in zip(measured, seconds["cross-entropy"], strict=True)]
        print(f"| {name} | {statistics.median(measured):.3f} | {statistics.median(ratios):.3f} |")


if __name__ == "__main__":
    main()
