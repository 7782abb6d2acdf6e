"""Write docs/results/cifar10.md from the runs in `results`.

fedwcm reproduce table4 --only beta=0.1,0.6 --only imbalance=0.1,0.01 --methods "fedavg,fedcm-nominal,fedcm,fedwcm,
    fedwcm+longtail,balancefl,fedgrab" --fraction 0.3 --set model.name=cnn --jobs 2 --backend sequential
fedwcm reproduce table4 --only imbalance=0.1 --only beta=0.1,0.6 --seeds 0 --fraction 0.3 --set model.width=16
    --methods "fedavg,fedcm-nominal,fedcm,fedwcm,fedwcm[alpha_rule=discrepancy],fedwcm+longtail" --jobs 2
python -m tools.measure_cifar10
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from fedwcm.reports.statistics import seed_test, spread
from fedwcm.reproduction.presets import Scope, expand, load_preset
from fedwcm.reproduction.store import ResultStore, StoredRun
from tools.generated import write_blocks

ROOT = Path(__file__).parents[1]
METHODS = {
    "fedwcm+longtail": "`fedwcm+longtail`",
    "FedWCM": "FedWCM",
    "FedAvg": "FedAvg",
    "fedcm": "exact FedCM",
    "FedCM": "nominal FedCM",
    "balancefl": "BalanceFL",
    "fedgrab": "Fed-GraB",
}
"""What the table calls the methods of the runs."""

PLACES = [("0.1", "0.1"), ("0.6", "0.1"), ("0.1", "0.01"), ("0.6", "0.01")]
"""β and imbalance factor."""

RESNETS = {
    "fedwcm+longtail": "`fedwcm+longtail`",
    "fedcm": "exact FedCM",
    "fedwcm[alpha_rule=discrepancy]": "FedWCM, α by D",
    "FedWCM": "FedWCM, α by local deviation",
    "FedAvg": "FedAvg",
    "FedCM": "nominal FedCM",
}
"""The runs of ResNet-18."""

EARLY = 25
"""Rounds of the stored runs of the whole ResNet-18."""

NARROW_FRACTION = 0.3
"""Share of the paper's rounds of those of width 16."""

SEEDS = (0, 1, 2)
TARGET = ("0.6", "0.1"), 0.55
"""Where, and to which accuracy, rounds are counted."""

Runs = Mapping[tuple[str, str, str], Mapping[int, StoredRun]]
"""By β, imbalance factor and method, the runs by seed."""


def final(run: StoredRun) -> float:
    return _known(run, run.summary.final_accuracy)


def early(run: StoredRun) -> float:
    return next(_known(run, record.test_accuracy) for record in run.history if record.round == EARLY)


def few(run: StoredRun) -> float:
    return _known(run, run.summary.few)


def last_ten(run: StoredRun) -> float:
    return _known(run, run.last_mean_accuracy)


def last_ten_few(run: StoredRun) -> float:
    return float(np.mean([_known(run, record.few) for record in run.history[-10:]]))


def main() -> None:
    """Write both tables, what they say of FedWCM and FedAvg, and the rounds to an accuracy."""
    stored = runs(ROOT / "results")
    lines = ["Final accuracy:", "", *_table(stored, final)]
    lines += ["", "Accuracy on the rare classes:", "", *_table(stored, few), "", *_differences(stored)]
    blocks = {"cifar10-cnn": lines, "rounds": _rounds(stored), "resnet-18": _resnets()}
    write_blocks(ROOT / "docs" / "results" / "cifar10.md", blocks)


def runs(results: Path) -> Runs:
    """Return the runs of the small network that are there."""
    scope = Scope(
        methods=["fedavg", "fedcm-nominal", "fedcm", "fedwcm", "fedwcm+longtail", "balancefl", "fedgrab"],
        seeds=SEEDS,
        only={"beta": ["0.1", "0.6"], "imbalance": ["0.1", "0.01"]},
        fraction=0.3,
        settings={"model.name": "cnn"},
    )
    return _found(results, scope)


def resnets(results: Path, fraction: float, settings: Mapping[str, object]) -> Runs:
    """Return the runs of ResNet-18 that are there."""
    methods = ["fedavg", "fedcm-nominal", "fedcm", "fedwcm", "fedwcm[alpha_rule=discrepancy]", "fedwcm+longtail"]
    only = {"beta": ["0.1", "0.6"], "imbalance": ["0.1"]}
    return _found(results, Scope((), methods, [0], only, fraction, settings))


def _found(results: Path, scope: Scope) -> Runs:
    stored: dict[tuple[str, str, str], dict[int, StoredRun]] = {}
    for cell, run in ResultStore(results).runs(expand(load_preset("table4"), scope)):
        place = cell.point["beta"], cell.point["imbalance"], cell.point["method"]
        stored.setdefault(place, {})[cell.seed] = run
    return stored


def _table(stored: Runs, measure: Callable[[StoredRun], float]) -> list[str]:
    head = ["method", *(f"β {beta}, IF {imbalance}" for beta, imbalance in PLACES)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method, name in METHODS.items():
        cells = [_cell(map(measure, stored.get((*place, method), {}).values())) for place in PLACES]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def _cell(values: Iterable[float]) -> str:
    """Return the mean and, of several seeds, the standard deviation and their number."""
    numbers = list(values)
    if not numbers:
        return "not run"
    over = spread(numbers)
    return f"{over.mean:.3f}" + (f" ± {over.std:.3f} ({over.runs})" if over.runs > 1 else "")


def differences(stored: Runs, measure: Callable[[StoredRun], float]) -> dict[tuple[tuple[str, str], int], float]:
    """Return FedWCM minus FedAvg in points, by place and seed."""
    return {
        (place, seed): 100 * (measure(run) - measure(stored[*place, "FedAvg"][seed]))
        for place in PLACES
        for seed, run in stored.get((*place, "FedWCM"), {}).items()
        if seed in stored.get((*place, "FedAvg"), {})
    }


def _differences(stored: Runs) -> list[str]:
    head = ["FedWCM minus FedAvg, points", *(f"β {beta}, IF {imbalance}" for beta, imbalance in PLACES)]
    head += ["all, 95 % interval over the seeds", "positive pairs"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    rows = {
        "final accuracy": final,
        "final, rare classes": few,
        "last ten evaluations": last_ten,
        "last ten, rare classes": last_ten_few,
    }
    for name, measure in rows.items():
        points = differences(stored, measure)
        means = [np.mean([value for (where, _), value in points.items() if where == place]) for place in PLACES]
        test = seed_test(points)
        over = "–" if test is None else f"{_signed(test.mean)} ({_signed(test.low)} to {_signed(test.high)})"
        above = f"{sum(value > 0 for value in points.values())} of {len(points)}"
        lines.append("| " + " | ".join([name, *map(_signed, map(float, means)), over, above]) + " |")
    return lines


def _rounds(stored: Runs) -> list[str]:
    """Return rounds, megabytes and seconds until an accuracy is first reached."""
    place, accuracy = TARGET
    head = ["method", "rounds, by seed", "mean", "MB sent and received", "seconds of the run"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method, name in METHODS.items():
        by_seed = stored.get((*place, method), {})
        spent = [until(run, accuracy) for run in by_seed.values()]
        reached = [each for each in spent if each is not None]
        each = ", ".join("not reached" if hit is None else str(hit[0]) for hit in spent)
        if not by_seed:
            continue
        row = [name, each, *(["–"] * 3)]
        if len(reached) == len(spent):
            means = np.mean(reached, axis=0)
            row = [name, each, f"{means[0]:.0f}", f"{means[1]:.0f}", f"{means[2]:.0f}"]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def _resnets() -> list[str]:
    """Return the whole ResNet-18 after its few rounds, and the narrow one after as many and at its end."""
    results = ROOT / "results"
    whole, narrow = resnets(results, 0.05, {}), resnets(results, NARROW_FRACTION, {"model.width": 16})
    betas = sorted({beta for beta, *_ in narrow})
    head = ["method", f"ResNet-18, β 0.1, round {EARLY}"]
    for beta in betas:
        head += [f"width 16, β {beta}, round {EARLY}", "last ten rounds", "of these, rare classes"]
        head += ["first round of 40 %", "mean α"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method, name in RESNETS.items():
        cells = [_cell(map(final, whole.get(("0.1", "0.1", method), {}).values()))]
        for beta in betas:
            found = narrow.get((beta, "0.1", method), {}).values()
            cells += [_cell(map(measure, found)) for measure in (early, last_ten, last_ten_few)]
            cells += [_first_round(run) for run in found] + [_mean_alpha(run) for run in found]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def _first_round(run: StoredRun) -> str:
    spent = until(run, 0.4)
    return "–" if spent is None else str(spent[0])


def _mean_alpha(run: StoredRun) -> str:
    alphas = [alpha for record in run.history if (alpha := record.number("alpha")) is not None]
    return f"{np.mean(alphas):.2f}" if alphas else "–"


def until(run: StoredRun, accuracy: float) -> tuple[int, float, float] | None:
    """Return the round in which an accuracy is first reached, with megabytes and seconds up to there."""
    for record in run.history:
        if record.test_accuracy is not None and record.test_accuracy >= accuracy:
            past = [each for each in run.history if each.round <= record.round]
            sent = sum((each.bytes_up or 0) + (each.bytes_down or 0) for each in past) / 1e6
            return record.round, sent, record.seconds or 0.0
    return None


def _known(run: StoredRun, value: float | None) -> float:
    if value is None:
        raise ValueError(f"{run.summary.name}, seed {run.summary.seed} has no such accuracy")
    return value


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


if __name__ == "__main__":
    main()
