"""Write the tables of docs/results/table1.md from the runs in `results` and the paper's numbers.

fedwcm reproduce table1 --dataset fashion-mnist --fraction 0.2
fedwcm reproduce table1 --dataset fashion-mnist --seeds 0
fedwcm reproduce controls --fraction 0.2 --only imbalance=0.05
python -m tools.measure_table1
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedwcm.reports.table_files import cell_text
from fedwcm.reproduction.presets import Scope, expand, load_preset
from fedwcm.reproduction.store import ResultStore, StoredRun, read_run
from fedwcm.reproduction.table import Entry, entries, rows_of_paper
from tools.generated import write_blocks

ROOT = Path(__file__).parents[1]
DATASETS = {
    "fashion-mnist": "Fashion-MNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
}
COLLAPSED, OTHER_PRIOR = "0.05", "FedCM + Balance Loss"
"""The row that collapses, and the column whose prior the paper does not state: not part of the distance."""

Place = tuple[str, str]
"""Imbalance factor and β."""
Table = Mapping[Place, Mapping[str, float]]
"""Accuracy by place and method."""


def main() -> None:
    """Write all tables."""
    short, long = Scope(fraction=0.2, dataset=["fashion-mnist"]), Scope(seeds=[0], dataset=["fashion-mnist"])
    paper = {name: printed(name) for name in DATASETS}
    ours = {"100 rounds, three seeds": measured(short), "500 rounds, one seed": measured(long)}
    write_blocks(
        ROOT / "docs" / "results" / "table1.md",
        {
            "highest": _highest(paper, ours),
            "differences": _differences(paper["fashion-mnist"], ours),
            "distance": _distance(paper["fashion-mnist"], ours),
            "closeness": _closeness(),
            "controls": _controls(),
        },
    )


def printed(dataset: str) -> Table:
    """Return the paper's block of a data set."""
    block: dict[Place, dict[str, float]] = {}
    for row in rows_of_paper("table1"):
        if row["dataset"] == dataset:
            block.setdefault((row["imbalance"], row["beta"]), {})[row["method"]] = float(row["accuracy"])
    return block


def measured(scope: Scope) -> Table:
    """Return our block: the mean final accuracy over the seeds; a run that diverged counts as chance."""
    values: dict[Place, dict[str, list[float]]] = {}
    for place, method, run in _runs(scope):
        final = run.summary.final_accuracy
        values.setdefault(place, {}).setdefault(method, []).append(0.1 if final is None else final)
    return {place: {m: float(np.mean(v)) for m, v in row.items()} for place, row in values.items()}


def highest(block: Table, method: str = "FedWCM") -> int:
    """Return in how many places a method is the highest."""
    return sum(max(row, key=lambda name: row[name]) == method for row in block.values())


def _runs(scope: Scope) -> list[tuple[Place, str, StoredRun]]:
    stored = ResultStore(ROOT / "results").runs(expand(load_preset("table1"), scope))
    return [((cell.point["imbalance"], cell.point["beta"]), cell.point["method"], run) for cell, run in stored]


def _highest(paper: Mapping[str, Table], ours: Mapping[str, Table]) -> list[str]:
    lines = ["| block | FedWCM highest | BalanceFL highest | FedWCM above FedAvg |", "|---|---|---|---|"]
    blocks = {f"{DATASETS[name]}, the paper": block for name, block in paper.items()}
    blocks |= {f"Fashion-MNIST, ours, {title}": block for title, block in ours.items()}
    for title, block in blocks.items():
        above = sum(row["FedWCM"] > row["FedAvg"] for row in block.values())
        counts = [highest(block), highest(block, "BalanceFL"), above]
        lines.append(f"| {title} | {' | '.join(f'{count} of {len(block)}' for count in counts)} |")
    total, cells = sum(highest(block) for block in paper.values()), sum(map(len, paper.values()))
    return [*lines, "", f"In the paper's whole table FedWCM is highest in {total} of {cells} cells."]


def _differences(paper: Table, ours: Mapping[str, Table]) -> list[str]:
    titles = ["the paper", *ours]
    head = ["IF", "β", *(f"− {other}, {title}" for other in ("FedAvg", "FedCM") for title in titles)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for place, row in paper.items():
        blocks = [row, *(block[place] for block in ours.values())]
        points = [100 * (each["FedWCM"] - each[other]) for other in ("FedAvg", "FedCM") for each in blocks]
        lines.append("| " + " | ".join([*place, *(f"{value:+.1f}".replace("-", "−") for value in points)]) + " |")
    return lines


def _distance(paper: Table, ours: Mapping[str, Table]) -> list[str]:
    lines = ["| ours | β | cells | mean distance, points | largest | ours above |", "|---|---|---|---|---|---|"]
    for title, block in ours.items():
        for beta in ("0.6", "0.1"):
            gaps = [
                100 * (block[place][method] - value)
                for place, row in paper.items()
                for method, value in row.items()
                if place[1] == beta and place[0] != COLLAPSED and method != OTHER_PRIOR
            ]
            above, far = sum(gap > 0 for gap in gaps), np.abs(gaps)
            lines.append(f"| {title} | {beta} | {len(gaps)} | {far.mean():.1f} | {far.max():.1f} | {above} |")
    return lines


def _closeness() -> list[str]:
    """How far FedWCM's weights and α are from FedAvg's: 100 % effective clients, and an α of 1."""
    found: dict[Place, list[tuple[float, float]]] = {}
    for place, _, run in _runs(Scope(fraction=0.2, dataset=["fashion-mnist"], methods=["FedWCM"])):
        found.setdefault(place, []).append((mean_alpha(run), effective_share(run)))
    lines = ["| IF | β | mean α | effective clients |", "|---|---|---|---|"]
    for (imbalance, beta), values in found.items():
        alpha, share = np.mean(values, axis=0)
        lines.append(f"| {imbalance} | {beta} | {alpha:.2f} | {share:.0%} |")
    return lines


def _controls() -> list[str]:
    preset, scope = load_preset("controls"), Scope(fraction=0.2, only={"imbalance": [COLLAPSED]})
    store = ResultStore(ROOT / "results")
    cells = expand(preset, scope)
    pairs = [(cell, None if (path := store.find(cell)) is None else read_run(path)) for cell in cells]
    table = entries(preset, pairs)
    lines = ["| method | options | β 0.6 | β 0.1 |", "|---|---|---|---|"]
    for title, spec in preset.methods.items():
        by_beta = {entry.point["beta"]: entry for entry in table if entry.point["method"] == title}
        lines.append(f"| {title} | `{spec}` | {_shown(by_beta['0.6'])} | {_shown(by_beta['0.1'])} |")
    return lines


def _shown(entry: Entry) -> str:
    if entry.accuracy is None:
        return "diverged" if entry.runs else "not run"
    text = cell_text(entry.accuracy)
    return text if len(entry.measured) == entry.wanted else f"{text} ({len(entry.measured)} of {entry.wanted})"


def mean_alpha(run: StoredRun) -> float:
    """Return the mean α over the rounds."""
    return float(np.mean([record.extra["alpha"] for record in run.history]))


def effective_share(run: StoredRun) -> float:
    """Return 1/Σw² over the number of clients, mean over the rounds."""
    weights = [np.array(record.weights) for record in run.history if record.weights]
    return float(np.mean([1 / np.sum(w**2) / len(w) for w in weights]))


if __name__ == "__main__":
    main()
