"""What false class counts do: one client of ten claims ten times the usual samples, all of the scarcest class.

    python -m tests.flower.counts_attack [METHOD …]

The clients, the data and the rounds are those of `tools.measure_one_client`; the liar trains as it should, so that
the class distribution that all train for, and its weight, are all that is false.
"""

import logging
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from tools.measure_one_client import CLIENTS, RUN, SEEDS, TARGET

from fedwcm.config.settings import from_settings
from fedwcm.core.batch import Federation
from fedwcm.experiment.build import build
from fedwcm.flower import client_app
from fedwcm.flower.server.deployment import serve
from fedwcm.models.mlp import MLP

from .wire import Mischief, WireGrid, honest

LIAR = 0
METHODS = ("fedwcm", "fedwcm+longtail")


def claims(samples: int) -> Mischief:
    """The liar's answers with so many samples of the scarcest class, and of no other."""

    def mischief(client: int, request: Message, reply: Message) -> Message:
        if client != LIAR or not reply.has_content():
            return reply
        for record in reply.content.config_records.values():
            if "samples" in record:
                record["samples"] = samples
        for numbers in reply.content.metric_records.values():
            if "counts" in numbers:
                numbers["counts"] = [samples * (c == TARGET) for c in range(10)]
            if "score" in numbers or "report/score" in numbers:
                prior: Any = request.content.config_records["population"]["prior"]
                numbers[next(key for key in numbers if key.endswith("score"))] = max(0.1 - prior[TARGET], 0.0)
        return reply

    return mischief


def outcome(method: str, seed: int, lying: bool, mode: str = "none") -> tuple[float, float]:
    """The balanced accuracy at the end, and the share of the scarcest class that the server believes."""
    experiment = build(from_settings({**RUN, "run.seed": seed}))
    federation: Federation = experiment.rounds.federation

    def data(node_config: Mapping[str, Any]) -> tuple[Any, Any]:
        shard = federation.shard(int(node_config["partition-id"]))
        return shard.store.inputs[shard.rows], shard.store.labels[shard.rows]

    def model() -> MLP:
        return MLP((1, 8, 8), 10)

    assert experiment.test is not None
    test = experiment.test.inputs, experiment.test.labels
    config = {key: value for key, value in RUN.items() if not key.startswith(("data", "partition."))}
    config |= {"method.name": method, "run.seed": seed, "flower.clients": CLIENTS, "privacy.mode": mode}
    nodes = WireGrid(client_app(model=model, data=data), config, CLIENTS)
    others = np.sort([len(federation.shard(client)) for client in range(CLIENTS) if client != LIAR])
    nodes.mischief = claims(10 * int(others[(len(others) - 1) // 2])) if lying else honest
    finished = serve(nodes, config, model, lambda: test)
    assert finished is not None
    assert all(record.participants == CLIENTS for record in finished.history)
    accuracy, counts = finished.history[-1].balanced_accuracy, np.array(finished.summary.train_counts)
    assert accuracy is not None
    return accuracy, float(counts[TARGET] / counts.sum())


def main() -> None:
    """Print a row for each method."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print("| method | honest | one liar | share of the scarcest class | as believed |\n|---|---|---|---|---|")
    for method in sys.argv[1:] or METHODS:
        truth, lies = (np.array([outcome(method, seed, lying) for seed in SEEDS]) for lying in (False, True))
        cells = [f"{runs[:, 0].mean():.2f} ± {runs[:, 0].std(ddof=1):.2f}" for runs in (truth, lies)]
        shares = [f"{runs[:, 1].mean():.2f}" for runs in (truth, lies)]
        print(f"| {method} | {' | '.join(cells + shares)} |", flush=True)


if __name__ == "__main__":
    main()
