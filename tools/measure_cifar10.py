"""Write CIFAR-10's section of docs/results/README.md from the runs in `results`.

fedwcm reproduce table4 --only beta=0.1,0.6 --only imbalance=0.1,0.01 --methods "fedavg,fedcm-nominal,fedcm,fedwcm,
    fedwcm+,balancefl,fedgrab" --fraction 0.3 --set model.name=cnn --jobs 2 --backend sequential
python -m tools.measure_cifar10
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedwcm.experiment.records import Summary
from fedwcm.reports.statistics import paired_test, spread
from fedwcm.reproduce.cells import Scope, expand
from fedwcm.reproduce.presets import load_preset
from fedwcm.reproduce.store import ResultStore
from tools.generated import write_blocks

ROOT = Path(__file__).parents[1]
METHODS = {
    "fedwcm+": "`fedwcm+`",
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

SEEDS = (0, 1, 2)
Runs = Mapping[tuple[str, str, str], Mapping[int, Summary]]
"""By β, imbalance factor and method, the runs by seed."""


def main() -> None:
    """Write both tables, and what they say of FedWCM and FedAvg."""
    found = runs(ROOT / "results")
    lines = ["Final accuracy:", "", *_table(found, "final_accuracy")]
    lines += ["", "Accuracy on the rare classes:", "", *_table(found, "few"), "", *_differences(found)]
    write_blocks(ROOT / "docs" / "results" / "README.md", {"cifar10-cnn": lines})


def runs(results: Path) -> Runs:
    """The runs that are there."""
    scope = Scope(
        methods=["fedavg", "fedcm-nominal", "fedcm", "fedwcm", "fedwcm+", "balancefl", "fedgrab"],
        seeds=SEEDS,
        only={"beta": ["0.1", "0.6"], "imbalance": ["0.1", "0.01"]},
        fraction=0.3,
        settings={"model.name": "cnn"},
    )
    found: dict[tuple[str, str, str], dict[int, Summary]] = {}
    for cell, run in ResultStore(results).runs(expand(load_preset("table4"), scope)):
        place = cell.point["beta"], cell.point["imbalance"], cell.point["method"]
        found.setdefault(place, {})[cell.seed] = run.summary
    return found


def _table(found: Runs, column: str) -> list[str]:
    head = ["method", *(f"β {beta}, IF {imbalance}" for beta, imbalance in PLACES)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method, name in METHODS.items():
        cells = [_cell(found.get((*place, method), {}).values(), column) for place in PLACES]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def _cell(summaries: Iterable[Summary], column: str) -> str:
    """The mean and, of several seeds, the standard deviation and their number."""
    values = [value for summary in summaries if (value := summary.number(column)) is not None]
    if not values:
        return "not run"
    over = spread(values)
    return f"{over.mean:.3f}" + (f" ± {over.std:.3f} ({over.runs})" if over.runs > 1 else "")


def _differences(found: Runs) -> list[str]:
    """FedWCM minus FedAvg, place by place and over all runs that share place and seed."""
    lines = []
    for column, name in (("final_accuracy", "accuracy"), ("few", "accuracy on the rare classes")):
        by_place = {place: _paired(found, place, column) for place in PLACES}
        every = [100 * value for values in by_place.values() for value in values]
        shown = ", ".join(
            f"{_signed(100 * float(np.mean(values)))} at β {beta}, IF {imbalance}"
            for (beta, imbalance), values in by_place.items()
            if values
        )
        mean = f"{_signed(float(np.mean(every)))} points over {len(every)} pairs of runs"
        if (test := paired_test(every)) is not None:
            mean += (
                f" (95 % interval {_signed(test.low)} to {_signed(test.high)}, places and seeds taken together)"
            )
        lines.append(f"- FedWCM minus FedAvg, {name}: {mean}; {shown}.")
    return lines


def _paired(found: Runs, place: tuple[str, str], column: str) -> Sequence[float]:
    ours, others = found.get((*place, "FedWCM"), {}), found.get((*place, "FedAvg"), {})
    return [_number(ours[seed], column) - _number(others[seed], column) for seed in ours if seed in others]


def _number(summary: Summary, column: str) -> float:
    value = summary.number(column)
    if value is None:
        raise ValueError(f"{summary.name}, seed {summary.seed} has no {column}")
    return value


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


if __name__ == "__main__":
    main()
