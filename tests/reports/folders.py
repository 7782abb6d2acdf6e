"""Run folders as runs leave them, made up in no time."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedwcm.config.schema import Config
from fedwcm.config.settings import from_settings, method_settings, overlay
from fedwcm.experiment.folder import ComparisonFolder, RunFolder
from fedwcm.experiment.records import ComparisonIndex, PartitionRecord, RoundRecord, Summary, outcome_of
from fedwcm.metrics.classification import summarise

CLASSES = ("cat", "dog", "owl", "elk")
LONG_NAME = "fedcm[alpha=0.1,momentum_norm=nominal,server_step=literal]"


def write_run(
    path: Path,
    method: str = "fedwcm",
    seed: int = 0,
    *,
    rounds: int = 12,
    classes: tuple[str, ...] = CLASSES,
    clients: int = 6,
    skill: float = 0.8,
    diverged: str | None = None,
    finished: bool = True,
    tested: bool = True,
    listed: bool = True,
    diagnosed: bool = False,
    **settings: object,
) -> Path:
    """A run whose accuracy rises to about `skill`, with every kind of record that the options leave."""
    rng = np.random.default_rng(seed)
    config = configured(method, seed, rounds, clients, settings)
    folder = RunFolder(path)
    folder.write_config(config)
    totals = np.maximum(1, (200 * 0.6 ** np.arange(len(classes))).astype(int))
    counts = np.stack([rng.multinomial(total, np.full(clients, 1 / clients)) for total in totals], axis=1)
    if listed:
        folder.write_partition(PartitionRecord.of(counts, classes))
    confusion, history = np.zeros((len(classes), len(classes)), dtype=int), []
    played = rounds if finished and not diverged else max(0, rounds // 2)
    for number in range(1, played + 1):
        confusion = _confusion(skill * (1 - 0.7**number), len(classes), rng)
        record = _record(number, confusion, totals, clients, rng, method.startswith(("fedcm", "fedwcm")), tested)
        if not listed:
            record = {key: value for key, value in record.items() if key not in ("clients", "weights")}
        diagnosis = _diagnosis(number) if diagnosed else {}
        history.append(RoundRecord.from_json({**record, **diagnosis}, f"round {number}"))
    folder.write_metrics(history)
    if finished:
        summary = Summary(
            **vars(outcome_of(history)),
            name=config.title,
            method=config.method.name,
            loss=config.loss.name,
            sampler=config.sampler.name,
            dataset=config.data.dataset,
            seed=seed,
            diverged=diverged,
            seconds_per_round=0.1,
            backend="sequential",
            parameters=1,
            train_counts=tuple(totals.tolist()),
            confusion=tuple(map(tuple, confusion.tolist())) if tested and history else None,
        )
        folder.write_summary(summary)
    return path


def write_comparison(
    out: Path, methods: tuple[str, ...] = ("fedavg", "fedcm", "fedwcm"), seeds: int = 2, **options: object
) -> Path:
    """A folder as `compare` leaves it, but for its tables."""
    labels = {}
    for rank, method in enumerate(methods):
        for seed in range(seeds):
            name = f"m{rank}-seed{seed}"
            write_run(out / "runs" / name, method, seed, skill=0.6 + 0.3 * rank / len(methods), **options)  # type: ignore[arg-type]
            labels[name] = method
    ComparisonFolder(out).write_index(ComparisonIndex(labels=labels))
    return out


def write_grid(out: Path, seeds: int = 2) -> Path:
    """A comparison over a grid of learning rates and divisions: two tasks, and a method whose name is long."""
    labels = {}  # type: ignore[var-annotated]
    for method, rate, beta, seed in product(("fedavg", LONG_NAME), (0.01, 0.1), (0.1, 0.6), range(seeds)):
        name = f"run{len(labels)}"
        settings = {"local__lr": rate, "partition__beta": beta, "run__name": method}
        write_run(out / "runs" / name, method, seed, skill=0.9 - rate, **settings)  # type: ignore[arg-type]
        labels[name] = f"{method} (local.lr={rate}, partition.beta={beta})"
    ComparisonFolder(out).write_index(ComparisonIndex(labels=labels, grid=("local.lr", "partition.beta")))
    return out


def amend_summary(path: Path, **changes: Any) -> Summary:
    """Change some of the numbers of a finished run; return them as they were."""
    before = RunFolder(path).summary()
    RunFolder(path).write_summary(replace(before, **changes))
    return before


def write_diverging_losses(path: Path) -> None:
    """Let the test and training loss of a run grow to 3e31, from its fourth round on."""
    folder = RunFolder(path)
    history = folder.metrics()
    records = zip(history, [1.0, 1.0, 1.0, *np.geomspace(50, 1e32, len(history) - 3)], strict=True)
    folder.write_metrics(
        [replace(r, test_loss=by * 2 / r.round, train_loss=by * 1.5 / r.round) for r, by in records]
    )


def configured(method: str, seed: int, rounds: int, clients: int, settings: dict[str, object]) -> Config:
    """The configuration of a made-up run; options are given with `__` for the dot."""
    base = {"run.seed": seed, "run.rounds": rounds, "partition.name": "equal", "partition.clients": clients}
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return from_settings(overlay({**base, "partition.beta": 0.1, **given}, method_settings(method)))


def _confusion(skill: float, classes: int, rng: np.random.Generator) -> np.ndarray:
    wrong = (1 - skill) / max(1, classes - 1)
    shares = np.full((classes, classes), wrong)
    np.fill_diagonal(shares, skill)
    confusion: np.ndarray = rng.multinomial(50, shares / shares.sum(axis=1, keepdims=True))
    return confusion


def _record(
    number: int,
    confusion: np.ndarray,
    totals: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    momentum: bool,
    tested: bool,
) -> dict[str, object]:
    cohort = sorted(rng.choice(clients, size=max(1, clients // 2), replace=False).tolist())
    weights = rng.dirichlet(np.full(len(cohort), 20.0))
    record: dict[str, object] = {"round": number}
    if tested:
        record |= {"test_loss": 2.0 / number, **vars(summarise(confusion, totals))}
    record |= {"participants": len(cohort), "bytes_down": 1000 * len(cohort), "bytes_up": 500 * len(cohort)}
    record |= {"train_loss": 1.5 / number, "train_accuracy": 1 - 0.5**number, "weights_entropy": 1.0}
    if momentum:
        record |= {"alpha": 0.1 + 0.3 / number, "gain": 0.9 - 0.3 / number}
    return record | {"clients": cohort, "weights": weights.tolist(), "seconds": 0.1 * number}


def _diagnosis(number: int) -> dict[str, object]:
    layers = {"body.1": 0.2 + 0.01 * number, "body.3": 0.3}
    return {
        "concentration": float(np.mean(list(layers.values()))),
        "concentration_layers": layers,
        "minority_angle": 90.0 - number,
        "classifier_angle": 92.0,
    }
