"""Print the tables of docs/results/natural.md: `python -m benchmarks.natural.tables judge`.

Every arm is shown as it was trained, and with log p subtracted from its logits at the strength that is best on
validation data. `auto` is the best of four arms on validation data, seed by seed.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.natural.arms import CANDIDATES
from benchmarks.natural.run import STRENGTHS, finished

Record = dict[str, Any]
PLAIN = STRENGTHS.index(0.0)


def fitted(record: Record) -> int:
    """Return the strength with the best balanced accuracy on validation data; of equal ones the smallest."""
    values = [point["balanced"] for point in record["val"]]
    return min(range(len(values)), key=lambda i: (-values[i], abs(STRENGTHS[i])))


def likeliest(record: Record) -> int:
    """Return the strength with the lowest loss on validation data, that is, for the natural mix of classes."""
    return min(range(len(STRENGTHS)), key=lambda i: record["val"][i]["nll"])


def chosen(records: Sequence[Record]) -> Record:
    """Return the arm that `auto` takes among the runs of one set and seed."""
    return max(records, key=lambda record: record["val"][fitted(record)]["balanced"])


def with_auto(done: dict[tuple[str, str, int], Record]) -> dict[tuple[str, str, int], Record]:
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
    curves = [(record[part][PLAIN], record[part][likeliest(record)]) for record in records if part in record]
    pairs = np.array([[plain["ece"], natural["ece"]] for plain, natural in curves])
    return " → ".join(f"{mean:.3f}".removeprefix("0") for mean in pairs.mean(axis=0)) if len(pairs) else "–"


def print_table(title: str, sets: Sequence[str], rows: dict[str, list[str]]) -> None:
    """Print a table with a column per set."""
    print(f"\n{title}\n\n| | {' | '.join(sets)} |\n|---|{'---|' * len(sets)}")
    for arm, cells in rows.items():
        print(f"| {arm} | {' | '.join(cells)} |")


def main() -> None:
    """Print the tables of a phase."""
    phase = sys.argv[1]
    part = "test" if phase == "judge" else "val"
    done = with_auto(finished(phase))
    sets = list(dict.fromkeys(name for name, _, _ in done))
    arms = list(dict.fromkeys(arm for _, arm, _ in done))
    runs = {arm: [[done[key] for key in done if key[:2] == (name, arm)] for name in sets] for arm in arms}
    points: dict[str, Callable[[Record], int]] = {
        "as trained": lambda _: PLAIN,
        "shifted, the strength fitted on validation data": fitted,
    }
    for title, point in points.items():
        rows = {arm: [cell(records, part, point) for records in by_set] for arm, by_set in runs.items()}
        print_table(f"{title}: accuracy/balanced/rare", sets, rows)
    rows = {arm: [errors(records, part) for records in by_set] for arm, by_set in runs.items()}
    print_table("calibration error, as trained → shifted to the natural mix", sets, rows)
    seeds = [len(records) for by_set in runs.values() for records in by_set]
    print(f"\nseeds: {min(seeds)} to {max(seeds)}")


if __name__ == "__main__":
    main()
