"""Write the tables of docs/results/readings.md from the runs in `results`: each reading against the default.

fedwcm reproduce readings --dataset fashion-mnist --fraction 0.4 --pages docs/results
python -m tools.measure_readings --dataset fashion-mnist --fraction 0.4
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedwcm.reports.statistics import seed_test
from fedwcm.reproduction.presets import Scope, expand, load_preset
from fedwcm.reproduction.store import ResultStore
from tools.generated import write_blocks

PAGE = Path(__file__).parents[1] / "docs" / "results" / "readings.md"
DEFAULT = "default"
Place = tuple[str, str]
"""Imbalance and β."""
Values = Mapping[str, Mapping[tuple[Place, int], float]]
"""By reading: accuracy at each place with each seed."""


def main() -> None:
    """Write the table of a data set."""
    scope, results = parse_scope()
    write_blocks(PAGE, {scope.dataset[0]: lines(scope, measured(scope, results))})


def parse_scope() -> tuple[Scope, Path]:
    """Return which runs the arguments name, and the folder of results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--methods", default="", help="those of the preset that were run, such as 'α 0.1,α 1'")
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--seeds", default="10,11,12")
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    methods = options.methods.split(",") if options.methods else ()
    return Scope([options.dataset], methods, seeds, fraction=options.fraction), options.results


def measured(scope: Scope, results: Path) -> Values:
    """Mean accuracy of the last ten evaluations of every run that is there and did not diverge."""
    store, found = ResultStore(results), dict[str, dict[tuple[Place, int], float]]()
    for cell, run in store.runs(expand(load_preset("readings"), scope)):
        accuracy = run.last_mean_accuracy
        if accuracy is not None:
            place = (cell.point["imbalance"], cell.point["beta"])
            found.setdefault(cell.point["method"], {})[place, cell.seed] = accuracy
    return found


def lines(scope: Scope, values: Values) -> list[str]:
    """The table: the default's accuracy, then every other reading's difference to it, in points."""
    if DEFAULT not in values:
        return ["Not run yet."]
    default = values[DEFAULT]
    places = sorted({place for place, _ in default}, key=lambda place: (-float(place[0]), place[1]))
    head = ["reading", *(f"IF {imbalance}, β {beta}" for imbalance, beta in places), "all"]
    table = [head, ["---"] * len(head)]
    table.append([f"{DEFAULT}, accuracy", *(f"{_mean(default, place):.3f}" for place in places), ""])
    for reading, own in values.items():
        if reading != DEFAULT:
            gains = {key: 100 * (own[key] - default[key]) for key in own if key in default}
            each = [f"{_mean(gains, place):+.1f}" if _has(gains, place) else "–" for place in places]
            table.append([reading, *each, _interval(gains)])
    rounds = expand(load_preset("readings"), scope)[0].settings["run.rounds"]
    seeds = ", ".join(map(str, scope.seeds))
    about = (
        f"{scope.dataset[0]}, {rounds} rounds, seeds {seeds}, mean of the last ten evaluations: the default's "
        "accuracy, and below it how far each other reading is above it, in points. The last column is the mean "
        "over the places that all seeds have, with the 95 % interval over the seeds; bold if that excludes zero."
    )
    return [about, "", *("| " + " | ".join(row) + " |" for row in table)]


def _has(values: Mapping[tuple[Place, int], float], place: Place) -> bool:
    return any(where == place for where, _ in values)


def _mean(values: Mapping[tuple[Place, int], float], place: Place) -> float:
    return float(np.mean([value for (where, _), value in values.items() if where == place]))


def _interval(gains: Mapping[tuple[Place, int], float]) -> str:
    test = seed_test(gains)
    if test is None:
        return "–"
    text = f"{test.mean:+.2f} [{test.low:+.2f}, {test.high:+.2f}]"
    return f"**{text}**" if test.low > 0 or test.high < 0 else text


if __name__ == "__main__":
    main()
