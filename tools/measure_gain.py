"""Write the tables of docs/results/momentum-gain.md: the predicted gain beside the paper's FedCM.

    python -m tools.measure_gain

Class sizes, partitions and the gain come from the package, the paper's numbers from its data files. No data set is
needed: the sizes of the classes are enough.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedwcm.balance import momentum_gain
from fedwcm.data.longtail import class_counts
from fedwcm.data.partition import FedGraB
from fedwcm.reproduction.table import PaperTable, rows_of_paper
from tools.generated import write_blocks

PAGE = Path(__file__).parents[1] / "docs" / "results" / "momentum-gain.md"
CLASSES = {
    "fashion-mnist": np.full(10, 6000),
    "cifar10": np.full(10, 5000),
    "svhn": np.array([4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]),
    "cifar100": np.full(100, 500),
    "tiny-imagenet": np.full(200, 500),
}
"""Training samples of each class."""
TITLES = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
}
CLIENTS, BATCH, ALPHA = 100, 50, 0.1
FEWER_CLIENTS = {"cifar100": 40, "tiny-imagenet": 40}
COLLAPSED = 0.55
"""Of FedCM's cells, those that the paper underlines as not converged are below this, and the others above."""


def main() -> None:
    """Write the tables."""
    thirteen = [("fashion-mnist", i) for i in (1, 0.5, 0.1, 0.05, 0.01)]
    thirteen += [("cifar10", i) for i in (1, 0.5, 0.4, 0.1, 0.06, 0.05, 0.04, 0.01)]
    svhn = [("svhn", i) for i in (1, 0.5, 0.1, 0.05, 0.01)]
    fashion = {f"{i:g}": ("fashion-mnist", i) for i in (1, 0.5, 0.4, 0.1, 0.06, 0.05, 0.04, 0.01)}
    others = {f"{TITLES[data]}, IF {i:g}": (data, i) for data, i in thirteen + svhn if data != "fashion-mnist"}
    write_blocks(
        PAGE,
        {
            "thirteen": _table(thirteen) + _count(thirteen),
            "svhn": _table(svhn) + _count(svhn),
            "collapsed": _collapsed(),
            "fedgrab": _fedgrab(),
            "remainder": _remainder(thirteen),
            "balanced": _balanced(),
            "fashion": _measured("momentum-gain-fashion-mnist", "imbalance", fashion),
            "cifar10": _cifar10(),
            "sizes": _measured("client-sizes", "sizes of", others),
        },
    )


def _balanced() -> list[str]:
    """The table that `fedwcm reproduce balanced-clients` has written."""
    page = PAGE.with_name("balanced-clients.md")
    if not page.exists():
        return ["Not run yet."]
    text = page.read_text(encoding="utf-8").splitlines()
    table = [line for line in text if line.startswith("|")]
    return [*table, "", *(line for line in text if line.startswith("!["))]


def _measured(page: str, axis: str, rows: Mapping[str, tuple[str, float]]) -> list[str]:
    """The runs of a page of `fedwcm reproduce` beside the gain, by the values of one of its axes."""
    with PAGE.with_name(f"{page}.csv").open(encoding="utf-8", newline="") as file:
        rows_there = csv.DictReader(file)  # one that diverged has no accuracy
        ours = {(row[axis], row["method"], row["beta"]): float(row["ours"] or "nan") for row in rows_there}
    lines = [
        f"| {axis} | n | g | FedCM, nominal, β 0.6 / 0.1 | FedCM, exact | as predicted |",
        "|---|---|---|---|---|---|",
    ]
    right = 0
    for label, (dataset, imbalance) in rows.items():
        n, g = size(dataset, imbalance)[0], gain(dataset, imbalance)
        nominal, exact = (
            [ours[label, f"FedCM, {kind}", b] for b in ("0.6", "0.1")] for kind in ("nominal", "exact")
        )
        right += agrees(g, nominal)
        verdict = "yes" if agrees(g, nominal) else "no"
        bold = "**" if g > 1 else ""
        lines.append(
            f"| {label} | {n} | {bold}{g:.3f}{bold} | {nominal[0]:.3f} / {nominal[1]:.3f} | "
            f"{exact[0]:.3f} / {exact[1]:.3f} | {verdict} |"
        )
    return [*lines, "", f"{right} of {len(rows)} rows as predicted."]


def _cifar10() -> list[str]:
    """FedCM with the fraction on CIFAR-10 itself, beside the paper's."""
    with PAGE.with_name("momentum-gain-cifar10-beta-0.1-0.4.csv").open(encoding="utf-8", newline="") as file:
        ours = {row["imbalance"]: row["ours"] for row in csv.DictReader(file)}
    lines = ["| imbalance | n | g | FedCM, nominal, 40 rounds | the paper's, 500 |", "|---|---|---|---|---|"]
    for imbalance, accuracy in ours.items():
        n, g = size("cifar10", float(imbalance))[0], gain("cifar10", float(imbalance))
        bold = "**" if g > 1 else ""
        reached = f"{float(accuracy):.3f}" if accuracy else "not run"
        theirs = paper("cifar10", float(imbalance))[1]
        lines.append(f"| {imbalance} | {n} | {bold}{g:.3f}{bold} | {reached} | {theirs:.3f} |")
    return lines


def size(dataset: str, imbalance: float) -> tuple[int, int]:
    """Samples of a client, and what the division among the clients leaves."""
    return divmod(int(class_counts(CLASSES[dataset], imbalance).sum()), FEWER_CLIENTS.get(dataset, CLIENTS))


def gain(dataset: str, imbalance: float) -> float:
    """The gain if the momentum is divided by E·n/b, n the samples of every client."""
    return momentum_gain(ALPHA, size(dataset, imbalance)[0], BATCH)


def paper(dataset: str, imbalance: float, method: str = "FedCM") -> list[float]:
    """The paper's accuracies at beta 0.6 and 0.1, of Table 1 or else of Table 4."""
    found = []
    for beta in ("0.6", "0.1"):
        point = {"dataset": dataset, "imbalance": f"{imbalance:g}", "beta": beta, "method": method}
        value = PaperTable("table1").accuracy(point) or PaperTable("table4").accuracy(point)
        assert value is not None
        found.append(value)
    return found


def agrees(predicted: float, accuracies: list[float]) -> bool:
    """Whether a gain above 1 and a collapse, at both heterogeneities, come together."""
    return all((predicted > 1) == (not accuracy >= COLLAPSED) for accuracy in accuracies)  # NaN has collapsed


def _table(rows: list[tuple[str, float]]) -> list[str]:
    lines = ["| data | IF | n | n/b | ⌈n/b⌉ | g | the paper's FedCM, β 0.6 / 0.1 | FedAvg | as predicted |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for dataset, imbalance in rows:
        n, g = size(dataset, imbalance)[0], gain(dataset, imbalance)
        fedcm, fedavg = paper(dataset, imbalance), paper(dataset, imbalance, "FedAvg")
        verdict = "yes" if agrees(g, fedcm) else "no"
        bold = "**" if g > 1 else ""
        lines.append(
            f"| {TITLES[dataset]} | {imbalance:g} | {n} | {n / BATCH:.2f} | {-(-n // BATCH)} | "
            f"{bold}{g:.3f}{bold} | "
            f"{fedcm[0]:.3f} / {fedcm[1]:.3f} | {fedavg[0]:.3f} / {fedavg[1]:.3f} | {verdict} |"
        )
    return lines


def _count(rows: list[tuple[str, float]]) -> list[str]:
    right = sum(agrees(gain(*row), paper(*row)) for row in rows)
    return ["", f"{right} of {len(rows)} rows as predicted."]


def _collapsed() -> list[str]:
    """Of FedCM's cells in Table 1 that the paper underlines as not converged, those with a gain above 1."""
    lines = ["| data | cells of FedCM not converged | of these with a gain above 1 | gains |", "|---|---|---|---|"]
    rows = [row for row in rows_of_paper("table1") if row["method"] == "FedCM" and row["underlined"] == "yes"]
    explained = 0
    for dataset, title in TITLES.items():
        gains = [gain(dataset, float(row["imbalance"])) for row in rows if row["dataset"] == dataset]
        above = sum(g > 1 for g in gains)
        explained += above
        lines.append(f"| {title} | {len(gains)} | {above} | {min(gains):.3f} to {max(gains):.3f} |")
    return [*lines, "", f"The gain explains {explained} of {len(rows)} cells."]


def _fedgrab() -> list[str]:
    """Unequal clients: the gain is of the mean of the steps over the mean size of the division drawn."""
    lines = [
        "| IF | g, mean over 20 divisions | smallest and largest | samples of the largest 10 % of clients | "
        "the paper's FedCM | FedAvg |",
        "|---|---|---|---|---|---|",
    ]
    table = PaperTable("appendix-a")
    for imbalance in (1, 0.4, 0.1, 0.06, 0.04, 0.01):
        labels = np.repeat(np.arange(10), class_counts(CLASSES["cifar10"], imbalance))
        divide = FedGraB(clients=CLIENTS, beta=0.1)
        gains, shares = [], []
        for seed in range(20):
            sizes = np.sort([len(part) for part in divide(labels, np.random.default_rng(seed))])
            gains.append(momentum_gain(ALPHA, sizes, BATCH))
            shares.append(sizes[-CLIENTS // 10 :].sum() / sizes.sum())
        point = {"imbalance": f"{imbalance:g}", "beta": "0.1"}
        fedcm, fedavg = (table.accuracy({**point, "method": method}) for method in ("FedCM", "FedAvg"))
        lines.append(
            f"| {imbalance:g} | {np.mean(gains):.3f} | {min(gains):.3f} to {max(gains):.3f} | "
            f"{min(shares):.0%} to {max(shares):.0%} | {fedcm} | {fedavg} |"
        )
    return lines


def _remainder(rows: list[tuple[str, float]]) -> list[str]:
    lines = ["| data | IF | n of the others | n of client 0 | g | as predicted |", "|---|---|---|---|---|---|"]
    right = 0
    for dataset, imbalance in rows:
        n, rest = size(dataset, imbalance)
        g = (1 - ALPHA) * -(-n // BATCH) / ((n + rest) / BATCH)
        right += agrees(g, paper(dataset, imbalance))
        verdict = "yes" if agrees(g, paper(dataset, imbalance)) else "no"
        lines.append(f"| {TITLES[dataset]} | {imbalance:g} | {n} | {n + rest} | {g:.3f} | {verdict} |")
    return [*lines, "", f"{right} of {len(rows)} rows as predicted."]


if __name__ == "__main__":
    main()
