"""Write the alpha map of docs/results/readings.md from the runs in `results`: which α is best where.

fedwcm reproduce alpha-map --dataset fashion-mnist --fraction 0.4 --pages docs/results
python -m tools.measure_alpha --dataset fashion-mnist --fraction 0.4
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedwcm.balance import adaptive_alpha, discrepancy, local_deviations
from fedwcm.core.rng import Purpose, generator
from fedwcm.data.longtail import class_counts
from fedwcm.data.partition import PARTITIONS, counts_of
from fedwcm.reproduction.presets import Scope, class_samples, expand, load_preset
from fedwcm.reproduction.store import ResultStore
from tools.generated import write_blocks
from tools.measure_readings import PAGE, parse_scope

CLIENTS = 100
RULES = ("D", "local deviation", "both", "0.5")


def main() -> None:
    """Write the map of a data set."""
    scope, results = parse_scope()
    write_blocks(PAGE, {f"alpha-map-{scope.dataset[0]}": _lines(scope, measured(scope, results))})


def measured(scope: Scope, results: Path) -> dict[tuple[str, str], dict[float, float]]:
    """Mean accuracy of the last ten evaluations by (IF, β) and α, where every α and seed was run."""
    store, found = ResultStore(results), dict[tuple[str, str], dict[float, list[float]]]()
    cells = expand(load_preset("alpha-map"), scope)
    for cell, run in store.runs(cells):
        if run.last_mean_accuracy is None:
            raise ValueError(
                f"{cell.label}, seed {cell.seed} has no accuracy ({run.summary.diverged}): no mean of it"
            )
        place = found.setdefault((cell.point["imbalance"], cell.point["beta"]), {})
        place.setdefault(float(cell.point["method"].removeprefix("α ")), []).append(run.last_mean_accuracy)
    alphas = len({cell.point["method"] for cell in cells})
    whole = {
        place: values
        for place, values in found.items()
        if len(values) == alphas and all(len(v) == len(scope.seeds) for v in values.values())
    }
    return {place: {a: float(np.mean(v)) for a, v in values.items()} for place, values in whole.items()}


def predictions(dataset: str, imbalance: float, beta: str, seed: int) -> dict[str, float]:
    """α by each rule, with q = 1."""
    labels = np.repeat(np.arange(10), class_counts(np.full(10, class_samples(dataset)), imbalance))
    options = {"clients": CLIENTS} if beta == "iid" else {"clients": CLIENTS, "beta": float(beta)}
    partition = PARTITIONS["iid" if beta == "iid" else "equal"](**options)
    counts = counts_of(partition(labels, generator(seed, Purpose.PARTITION)), labels, 10)
    d, local = discrepancy(counts), float(local_deviations(counts).mean())
    exponents = {"D": d, "local deviation": local, "both": (d + local) / 2}
    return {**{rule: adaptive_alpha(e, 1.0, 1.0) for rule, e in exponents.items()}, "0.5": 0.5}


def _lines(scope: Scope, accuracies: Mapping[tuple[str, str], Mapping[float, float]]) -> list[str]:
    if not accuracies:
        return ["Not run yet."]
    alphas = sorted(next(iter(accuracies.values())))
    head = ["IF", "β", *(f"α {alpha:g}" for alpha in alphas), "best α", *(f"by {rule}" for rule in RULES)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lost: dict[str, list[float]] = {rule: [] for rule in RULES}
    for (imbalance, beta), values in accuracies.items():
        best = max(values, key=lambda alpha: values[alpha])
        rules = _mean_predictions(scope, float(imbalance), beta)
        for rule, alpha in rules.items():
            lost[rule].append(values[best] - float(np.interp(alpha, alphas, [values[a] for a in alphas])))
        cells = [f"**{values[a]:.3f}**" if a == best else f"{values[a]:.3f}" for a in alphas]
        row = [imbalance, beta, *cells, f"{best:g}", *(f"{rules[rule]:.2f}" for rule in RULES)]
        lines.append("| " + " | ".join(row) + " |")
    mean = ", ".join(f"{rule} {100 * np.mean(values):.1f}" for rule, values in lost.items())
    rounds = expand(load_preset("alpha-map"), scope)[0].settings["run.rounds"]
    seeds = ", ".join(map(str, scope.seeds))
    about = (
        f"Exact FedCM on {scope.dataset[0]}, {rounds} rounds, seeds {seeds}, mean of the last ten evaluations. "
        "The last columns are the α of each rule, α = 0.1 + 0.9 (1 − e^(−exponent)), with D, the clients' mean "
        "local deviation or the mean of both as exponent, and a constant."
    )
    return [about, "", *lines, "", f"Points lost against the best α, mean over the rows: {mean}."]


def _mean_predictions(scope: Scope, imbalance: float, beta: str) -> dict[str, float]:
    each = [predictions(scope.dataset[0], imbalance, beta, seed) for seed in scope.seeds]
    return {rule: float(np.mean([values[rule] for values in each])) for rule in RULES}


if __name__ == "__main__":
    main()
