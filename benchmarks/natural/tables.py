"""Print the tables of docs/results/natural.md: `python -m benchmarks.natural.tables judge`.

Beside `judge`: `choose`, the same on validation data; `follows`, `leads` and `limits`, see their functions.
Every arm is shown as it was trained, and with log p subtracted from its logits at the strength that is best on
validation data; then its curve, at all strengths. `auto` is the best of four arms on validation data.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks.natural.arms import CANDIDATES, COMPARED, JUDGED
from benchmarks.natural.run import STRENGTHS, finished
from benchmarks.natural.sets import FILES

Record = dict[str, Any]
Curve = Sequence[dict[str, float]]
Key = tuple[str, str, int]
Runs = dict[str, list[list[Record]]]
NATURAL = ", natural"
"""Ends the name of a tail whose test has been given the class mix of the training."""


def by_tail(done: dict[Key, Record]) -> dict[Key, Record]:
    """Return the runs by tail instead of set: a balanced set that was given a natural mix too is two tails."""
    tails = dict(done)
    for (name, arm, seed), record in done.items():
        if f"val{NATURAL}" in record:
            parts: Record = {part: record[f"{part}{NATURAL}"] for part in ("val", "test") if part in record}
            tails[name + NATURAL, arm, seed] = {**record, **parts}
    return tails


def fitted(record: Record) -> int:
    """Return the strength with the best balanced accuracy on validation data; of equal ones the smallest."""
    points = record["val"]
    return min(range(len(points)), key=lambda i: (-points[i]["balanced"], abs(points[i]["tau"])))


def likeliest(record: Record) -> int:
    """Return the strength with the lowest loss on validation data, that is, for its mix of classes."""
    return min(range(len(record["val"])), key=lambda i: record["val"][i]["nll"])


def plain(record: Record) -> int:
    """Return the strength 0."""
    return [point["tau"] for point in record["val"]].index(0.0)


def chosen(records: Sequence[Record]) -> Record:
    """Return the arm that `auto` takes among the runs of one set and seed."""
    return max(records, key=lambda record: record["val"][fitted(record)]["balanced"])


def with_auto(done: dict[Key, Record]) -> dict[Key, Record]:
    """Return the runs, and those of `auto`."""
    places = {(name, seed) for name, _, seed in done}
    auto = {}
    for name, seed in places:
        runs = [done.get((name, arm, seed), {}) for arm in CANDIDATES]
        if all("val" in run for run in runs):
            auto[name, "auto", seed] = chosen(runs)
    return done | auto


def cell(records: Sequence[Record], part: str, point: Callable[[Record], int]) -> str:
    """Return accuracy, balanced accuracy and that of rare classes, means over seeds."""
    points = [record[part][point(record)] for record in records if part in record]
    if not points:
        return "–"
    means = [np.nanmean([p[key] for p in points]) for key in ("accuracy", "balanced", "rare")]
    return "/".join(f"{mean:.3f}".removeprefix("0") for mean in means)


def errors(records: Sequence[Record], part: str) -> str:
    """Return the calibration error as trained, and for the natural mix of classes."""
    runs = [record for record in records if part in record]
    columns = [[record[part][point(record)]["ece"] for record in runs] for point in (plain, likeliest)]
    return " → ".join(f"{np.mean(column):.3f}".removeprefix("0") for column in columns) if runs else "–"


def reached(curve: Curve) -> NDArray[np.float64]:
    """Return the most that a curve reaches of balanced accuracy, of its mean with accuracy, and of accuracy."""
    accuracy, balanced = (np.array([point[key] for point in curve]) for key in ("accuracy", "balanced"))
    return np.array([(share * accuracy + (1 - share) * balanced).max() for share in (0.0, 0.5, 1.0)])


def curves(records: Sequence[Record], others: Sequence[Record], part: str) -> str:
    """Return how far a curve reaches above another: balanced accuracy, the mean of both, accuracy; in points."""
    pairs = [(a[part], b[part]) for a, b in zip(records, others, strict=True) if part in a and part in b]
    if not pairs:
        return "–"
    above = 100 * np.mean([reached(one) - reached(other) for one, other in pairs], axis=0)
    return _signed(above)


def print_table(title: str, columns: Sequence[str], rows: dict[str, list[str]]) -> None:
    """Print a table."""
    print(f"\n{title}\n\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


def print_phase(done: dict[Key, Record], part: str) -> None:
    """Print the tables of a phase."""
    sets = list(dict.fromkeys(name for name, _, _ in done))
    arms = list(dict.fromkeys(arm for _, arm, _ in done))
    seeds = sorted({seed for *_, seed in done})
    runs: Runs = {arm: [[done.get((name, arm, seed), {}) for seed in seeds] for name in sets] for arm in arms}
    points = {"as trained": plain, "shifted, the strength fitted on validation data": fitted}
    for title, point in points.items():
        rows = {arm: [cell(records, part, point) for records in by_set] for arm, by_set in runs.items()}
        print_table(f"{title}: accuracy/balanced/rare", sets, rows)
    rows = {
        arm: [curves(records, base, part) for records, base in zip(by_set, runs["fedavg"], strict=True)]
        for arm, by_set in runs.items()
        if arm != "fedavg"
    }
    print_table("curves, above that of fedavg: balanced/half and half/accuracy", sets, rows)
    rows = {arm: [errors(records, part) for records in by_set] for arm, by_set in runs.items()}
    print_table("calibration error, as trained → shifted to the natural mix", sets, rows)
    print(f"\nseeds: {len(seeds)}")


FOLLOWS = {
    "`auto`": "auto",
    "`fedwcm+longtail`": "fedwcm+",
    "`fedwcm-natural`": "fedwcm-x H N",
    "`fedwcm-natural-balanced`": "fedwcm-x H N half",
}
"""What the page says of recipes, and the arms that they are."""


def print_follows() -> None:
    """Print how far recipes are above FedAvg on test data, at fitted strengths, and `auto` below the best arm."""
    done = with_auto(finished("judge"))
    arms = {arm: {name: _judged(done, name, arm) for name in FILES} for _, arm, _ in done}
    rows = {
        f"{label} − FedAvg": [interval(100 * (arms[arm][name] - arms["fedavg"][name])) for name in FILES]
        for label, arm in FOLLOWS.items()
    }
    best = {name: max(arms[arm][name].mean() for arm in JUDGED) for name in FILES}
    rows["`auto` − best"] = [_points([arms["auto"][name].mean() - best[name]]) for name in FILES]
    print_table("balanced accuracy at the fitted strength, in points", list(FILES), rows)


def _judged(done: dict[Key, Record], name: str, arm: str) -> NDArray[np.float64]:
    """Return the balanced accuracy on test data of an arm with each seed."""
    runs = [done[name, arm, seed] for seed in sorted({seed for *_, seed in done})]
    return np.array([run["test"][fitted(run)]["balanced"] for run in runs])


def print_leads() -> None:
    """Print how far each idea is above the arm that lacks it, on validation data at the fitted strength."""
    done = finished("choose")
    sets = list(dict.fromkeys(name for name, _, _ in done))
    rows = {}
    for idea, pairs in COMPARED.items():
        for one, other in pairs:
            both = [(name, seed) for name, arm, seed in done if arm == one and (name, other, seed) in done]
            gains = {
                place: _gain(done[place[0], one, place[1]], done[place[0], other, place[1]]) for place in both
            }
            cells = [[gain for (name, _), gain in gains.items() if name == each] for each in sets]
            rows[f"{idea}: {one} − {other}"] = [_points(each) for each in (*cells, list(gains.values()))]
    print_table("balanced accuracy on validation data, in points", [*sets, "all"], rows)


def _gain(one: Record, other: Record) -> float:
    return float(one["val"][fitted(one)]["balanced"] - other["val"][fitted(other)]["balanced"])


def interval(points: NDArray[np.float64]) -> str:
    """Return the mean over seeds, and the half width of its 95 % interval."""
    reach = student.ppf(0.975, len(points) - 1) * points.std(ddof=1) / len(points) ** 0.5
    return f"{points.mean():+.1f} ± {reach:.1f}".replace("-", "−")


def _points(gains: Sequence[float]) -> str:
    return f"{100 * np.mean(gains):+.1f}".replace("-", "−") if gains else "–"


def _narrow(curve: Curve, name: str) -> Curve:
    """Return the strengths that all runs of a set have: on natural ones most were run with these only."""
    return [point for point in curve if -1.0 <= point["tau"] <= 2.0] if name in FILES else curve


def print_limits() -> None:
    """Print the accuracy gained by adding log p more than once, and how far it is then above FedAvg's."""
    done = {
        key: run["val"] for key, run in finished("choose").items() if len(run.get("val", [])) == len(STRENGTHS)
    }
    rows = {}
    for arm in CANDIDATES:
        places = [(name, s) for name, a, s in done if a == arm and (name, "fedavg", s) in done and name in FILES]
        ends = {place: reached(done[place[0], arm, place[1]])[-1] for place in places}
        gains = {(n, s): end - reached(_narrow(done[n, arm, s], n))[-1] for (n, s), end in ends.items()}
        above = {(n, s): end - reached(done[n, "fedavg", s])[-1] for (n, s), end in ends.items()}
        columns = [
            [_points([v for (n, _), v in each.items() if n == name]) for each in (gains, above)] for name in FILES
        ]
        rows[arm] = [", ".join(column) for column in columns]
    print_table("accuracy beyond one log p: gained, then above fedavg, in points", list(FILES), rows)


def _signed(values: NDArray[np.float64]) -> str:
    return "/".join(f"{value:+.1f}".replace("-", "−") for value in values)


def main() -> None:
    """Print what is asked for."""
    asked = sys.argv[1]
    views = {"follows": print_follows, "leads": print_leads, "limits": print_limits}
    if asked in views:
        views[asked]()
    else:
        print_phase(with_auto(by_tail(finished(asked))), "val" if asked == "choose" else "test")


if __name__ == "__main__":
    main()
