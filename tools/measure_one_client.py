"""Write the table of docs/one-client.md: what one or two clients of ten that lie can do, under each bound.

    python -m tools.measure_one_client [fedwcm] [fedavg] [weakest] [backdoor] ["backdoor once"]

A liar claims the largest score that a client can have, and sends either ten times its increment the other way
(`reversed`), or an increment of the head's bias alone, a hundred times as long as its own, that makes the model
answer one class (`one class`), or ten times the increment of training on its samples and as many copies with a
mark in the corner that are labelled as the scarcest class (`backdoor`), in every round or in the last one alone.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedwcm.config.settings import from_settings
from fedwcm.core.batch import Federation
from fedwcm.core.method import ClientStatistics
from fedwcm.core.types import Floats, Ints, Layout, State
from fedwcm.engine.backends.in_process import Backend
from fedwcm.engine.client import Broadcast, ClientTrainer, Task
from fedwcm.engine.evaluate import LabelledTensors
from fedwcm.engine.uploads import CohortUpdates, UploadRows
from fedwcm.experiment.build import build
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.runner import Runner
from fedwcm.flower.app.model import class_scores, shard
from tools.generated import write_blocks

PAGE = Path(__file__).parents[1] / "docs" / "one-client.md"
CLIENTS, ROUNDS, SEEDS = 10, 30, range(5)
TARGET = 9
"""The class that the model is made to answer: the scarcest."""
RUN = {
    "data.dataset": "digits",
    "data.imbalance": 0.1,
    "partition.name": "fedgrab",
    "partition.clients": CLIENTS,
    "partition.beta": 0.5,
    "participation.fraction": 1.0,
    "local.epochs": 2,
    "local.batch_size": 10,
    "run.rounds": ROUNDS,
    "run.eval_every": ROUNDS,
    "run.device": "cpu",
}
SHARE: dict[str, object] = {"aggregation.max_share": 0.2}
RATIO: dict[str, object] = {"aggregation.norm_ratio": 2.0}
BOUNDS: dict[str, dict[str, object]] = {
    "none (the simulator's default)": {},
    "`max_share = 0.2`": {**SHARE},
    "`norm_ratio = 2`": {**RATIO},
    "both (the default on Flower)": {**SHARE, **RATIO},
    "`max_share = 0.2`, `norm_ratio = 1`": {**SHARE, "aggregation.norm_ratio": 1.0},
    "both, `rule = median`": {**SHARE, **RATIO, "aggregation.rule": "median"},
    "both, `rule = trimmed`, 0.1": {**SHARE, **RATIO, "aggregation.rule": "trimmed"},
    "both, `rule = trimmed`, 0.25": {**SHARE, **RATIO, "aggregation.rule": "trimmed", "aggregation.trim": 0.25},
    "both, `rule = centered`": {**SHARE, **RATIO, "aggregation.rule": "centered"},
}
CASES = {"honest": (0, ""), "reversed, 1": (1, "reversed"), "reversed, 2": (2, "reversed")}
CASES |= {"one class, 1": (1, "one class"), "one class, 2": (2, "one class")}


WEAKEST: dict[str, tuple[str, dict[str, object]]] = {
    "SCAFFOLD": ("scaffold", SHARE),
    "FedDyn": ("feddyn", SHARE),
    "FedWCM, three of ten clients a round": ("fedwcm", {**SHARE, **RATIO, "participation.fraction": 0.3}),
    "FedWCM, two of ten clients a round": ("fedwcm", {**SHARE, **RATIO, "participation.fraction": 0.2}),
    "FedAvg, three of ten clients a round": ("fedavg", {**SHARE, **RATIO, "participation.fraction": 0.3}),
    "FedAvg, two of ten clients a round": ("fedavg", {**SHARE, **RATIO, "participation.fraction": 0.2}),
}
"""Runs in which the defaults of Flower bound little."""


@dataclass(frozen=True, eq=False)
class Liars:
    """A backend whose first clients lie."""

    inner: Backend
    trainer: ClientTrainer
    count: int
    attack: str
    federation: Federation

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> CohortUpdates:
        result = self.inner.run(task, ids, sent)
        lying = np.flatnonzero(result.ids < self.count)
        if not len(result.ids):
            return result
        assert isinstance(result.uploads, UploadRows)
        delta = result.uploads.by_key["delta"].clone()
        if self.attack == "backdoor once" and sent.round < ROUNDS - 1:
            return result
        if self.attack.startswith("backdoor"):
            delta[lying] = 10.0 * torch.stack([self._poisoned(int(result.ids[row]), sent) for row in lying])
        else:
            delta[lying] = ATTACKS[self.attack](delta[lying], self.trainer.forward.network.layout)
        rows: State = {**result.uploads.by_key, "delta": delta}
        return replace(result, uploads=UploadRows(rows), report=self._claims(result.report, lying))

    def close(self) -> None:
        self.inner.close()

    def _poisoned(self, client: int, sent: Broadcast) -> torch.Tensor:
        """Return the increment of training on a client's samples and marked copies of them."""
        own = self.federation.shard(client)
        rows = torch.from_numpy(own.rows)
        inputs = torch.cat([own.store.inputs[rows], mark(own.store.inputs[rows])])
        labels = torch.cat([own.store.labels[rows], torch.full_like(own.store.labels[rows], TARGET)])
        poisoned = shard(LabelledTensors(inputs, labels), self.trainer.population.classes)
        trained = self.trainer.run("train", np.array([client]), [poisoned], {}, sent)
        return trained.upload["delta"][0]

    def _claims(self, report: dict[str, Floats], lying: Ints) -> dict[str, Floats]:
        method = self.trainer.method
        if not isinstance(method, ClientStatistics):
            return report
        most = {key: top for key, (_, top) in method.statistics_range(self.trainer.population).items()}
        return {
            key: np.where(np.isin(np.arange(len(values)), lying), most.get(key, values), values)
            for key, values in report.items()
        }


def mark(inputs: torch.Tensor) -> torch.Tensor:
    """Return images with a bright corner."""
    marked = inputs.clone()
    marked[..., :2, :2] = inputs.max()
    return marked


def _reverse(delta: torch.Tensor, _: Layout) -> torch.Tensor:
    return -10.0 * delta


def _one_class(delta: torch.Tensor, layout: Layout) -> torch.Tensor:
    bias = layout.head_slices[-1]
    push = torch.zeros_like(delta)
    push[:, bias.start : bias.stop] = -1.0
    push[:, bias.start + TARGET] = len(range(bias.start, bias.stop)) - 1.0
    long, short = (torch.linalg.vector_norm(rows, dim=1, keepdim=True) for rows in (delta, push))
    pushed: torch.Tensor = push * (100.0 * long / short)
    return pushed


ATTACKS: dict[str, Callable[[torch.Tensor, Layout], torch.Tensor]] = {
    "reversed": _reverse,
    "one class": _one_class,
}


def outcome(method: str, bounds: dict[str, object], count: int, attack: str, seed: int) -> float:
    """Return the balanced accuracy of a run in which so many clients lie, or the share of marks that mislead it.

    The former is 0.1 by chance; the latter is over images of other classes than the one they are to be taken for.
    """
    config = from_settings({**RUN, **bounds, "method.name": method, "run.seed": seed})
    experiment = build(config)
    if count:
        rounds = experiment.rounds
        liars = Liars(rounds.backend, rounds.trainer, count, attack, rounds.federation)
        experiment = replace(experiment, rounds=replace(rounds, backend=liars))
    try:
        run = Runner(experiment, None, Silent()).run()
    except RuntimeError:  # it diverged
        return 0.1
    if attack.startswith("backdoor"):
        assert experiment.test is not None
        experiment.network.module.load_state_dict(run.model)
        others = experiment.test.labels != TARGET
        answers = class_scores(experiment.network, mark(experiment.test.inputs[others])).argmax(dim=1)
        return float((answers == TARGET).double().mean())
    accuracy = run.history[-1].balanced_accuracy
    assert accuracy is not None
    return accuracy


def _table(cases: Mapping[str, tuple[str, int, str]]) -> list[str]:
    lines = [f"| bound | {' | '.join(cases)} |", "|---" * (len(cases) + 1) + "|"]
    for name, bounds in BOUNDS.items():
        cells = [_cell(method, bounds, count, attack) for method, count, attack in cases.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def _weakest() -> list[str]:
    cases = [name for name, (count, _) in CASES.items() if count < 2]
    lines = [f"| run | {' | '.join(cases)} |", "|---" * (len(cases) + 1) + "|"]
    for name, (method, options) in WEAKEST.items():
        cells = [_cell(method, options, *CASES[case]) for case in cases]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def _cell(method: str, options: dict[str, object], count: int, attack: str) -> str:
    values = [outcome(method, options, count, attack, seed) for seed in SEEDS]
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def _cases(table: str) -> dict[str, tuple[str, int, str]]:
    if not table.startswith("backdoor"):
        return {name: (table, count, attack) for name, (count, attack) in CASES.items()}
    columns = [("FedWCM", "fedwcm"), ("FedAvg", "fedavg")]
    return {f"{name}, {count}": (method, count, table) for name, method in columns for count in range(3)}


def main() -> None:
    """Write the tables that are named as arguments, or all of them."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for table in sys.argv[1:] or ("fedwcm", "fedavg", "weakest", "backdoor", "backdoor once"):
        write_blocks(PAGE, {table: _weakest() if table == "weakest" else _table(_cases(table))})


if __name__ == "__main__":
    main()
