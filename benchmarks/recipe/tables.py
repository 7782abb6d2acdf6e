"""Write the tables of docs/results/recipe.md and recipe-tables.md, and the figure.

    python -m benchmarks.recipe.tables

Numbers are means over the last three evaluations. Intervals are those of a paired t-test over the seeds, 95 %.
`earlier` are the judged runs of earlier definitions of the recipe, with the commit that held them.
"""

import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from tools.generated import write_blocks

from benchmarks.recipe import grid
from benchmarks.recipe.run import FROZEN, PHASES, RESULTS
from fedwcm.reports.statistics import PairedTest, paired_test, seed_test
from fedwcm.utils.text import format_markdown as table

PAGE, ALL_TABLES = Path("docs/results/recipe.md"), Path("docs/results/recipe-tables.md")
ON_PAGE = ("earlier", "final", "parts", "costs")
"""The tables of the first page; the second has the others."""

FIGURE = Path("docs/images/recipe.svg")
LAST = 3
TWIN = "fedcm+longtail"
Key = tuple[str, str, int]
Results = dict[Key, dict[str, Any]]


def results(phase: str) -> Results:
    """Return the runs of a phase by cell, arm and seed; those that diverged are left out."""
    records = [json.loads(line) for line in _lines(phase)]
    found = {(r["cell"], present_name(r["arm"]), r["seed"]): r for r in records if r["history"]}
    return _completed(found) if phase == "judge" else found


def present_name(arm: str) -> str:
    """Return the name of an arm, with the name that its recipe has today."""
    return re.sub(r"^(\w+)\+(?!\w)", r"\1+longtail", arm)


def _lines(phase: str) -> list[str]:
    path = RESULTS / f"{phase}.jsonl.gz"
    return gzip.decompress(path.read_bytes()).decode().splitlines() if path.exists() else []


def _completed(found: Results) -> Results:
    """Return the runs of the cells in which every arm that is drawn has at least three seeds."""
    whole = {c for c, _, _ in found if all(sum(k[:2] == (c, arm) for k in found) >= 3 for arm in grid.DRAWN)}
    return {key: run for key, run in found.items() if key[0] in whole}


def measure(run: dict[str, Any], metric: str) -> float:
    """Return a metric of a run, averaged over its last evaluations."""
    return float(np.mean([record[metric] for record in run["history"][-LAST:]]))


def values(found: Results, cell: str, arm: str, metric: str) -> dict[int, float]:
    """Return a metric of an arm in a cell by seed."""
    return {seed: measure(run, metric) for (c, a, seed), run in found.items() if (c, a) == (cell, arm)}


def ordered(found: Results, which: int) -> list[str]:
    """Return the cells (0) or arms (1) in the order of the first run."""
    return list(dict.fromkeys(key[which] for key in found))  # type: ignore[misc]


def means(found: Results, metric: str) -> str:
    """Return the mean of each arm over the seeds, the best in bold; a star marks fewer seeds than others.

    Cells stand in the lines, or in the columns if there are many more arms.
    """
    cells, arms = ordered(found, 0), ordered(found, 1)
    columns = {cell: {arm: values(found, cell, arm, metric) for arm in arms} for cell in cells}
    best = {cell: max(np.mean(list(v.values())) for v in column.values() if v) for cell, column in columns.items()}

    def shown(arm: str, cell: str) -> str:
        by_seed = columns[cell][arm]
        if not by_seed:
            return "–"
        mean = float(np.mean(list(by_seed.values())))
        text = f"{mean:.3f}" + ("*" if len(by_seed) < max(map(len, columns[cell].values())) else "")
        return f"**{text}**" if mean == best[cell] else text

    if len(arms) > 1.5 * len(cells):
        return table(["", *map(label, cells)], ([arm, *(shown(arm, cell) for cell in cells)] for arm in arms))
    return table(["", *arms], ([label(cell), *(shown(arm, cell) for arm in arms)] for cell in cells))


def interval(pairs: Sequence[float]) -> str:
    """Return the mean of paired differences in points and its interval; bold if that excludes zero."""
    test = paired_test(pairs)
    if test is None:
        return "–" if not pairs else f"{100 * pairs[0]:+.1f}"
    return _bounds(test)


def _bounds(test: PairedTest) -> str:
    text = f"{100 * test.mean:+.1f} ± {50 * (test.high - test.low):.1f}"
    return f"**{text}**" if test.low > 0 or test.high < 0 else text


def differences(found: Results, metric: str) -> str:
    """Return how far the recipe is above every other arm, in points, by cell."""
    cells, arms = ordered(found, 0), [arm for arm in ordered(found, 1) if arm != grid.RECIPE]

    def gap(cell: str, arm: str) -> str:
        ours = values(found, cell, grid.RECIPE, metric)
        theirs = values(found, cell, arm, metric)
        return interval([ours[seed] - theirs[seed] for seed in ours if seed in theirs])

    return table(["recipe minus", *arms], ([label(cell), *(gap(cell, arm) for arm in arms)] for cell in cells))


def wins(found: Results) -> str:
    """Return in how many cells the recipe is above each arm with its interval above zero."""
    cells, arms = ordered(found, 0), [arm for arm in ordered(found, 1) if arm != grid.RECIPE]

    def above(arm: str, metric: str, other_metric: str) -> str:
        tests = []
        for cell in cells:
            ours, theirs = values(found, cell, grid.RECIPE, metric), values(found, cell, arm, other_metric)
            tests.append(paired_test([ours[seed] - theirs[seed] for seed in ours if seed in theirs]))
        known = [test for test in tests if test is not None]
        return f"{sum(test.low > 0 for test in known)} of {len(known)}" if known else "–"

    columns = [
        (m, prefix + m.removeprefix("test_")) for prefix in ("plain_", "") for m in ("test_accuracy", "few")
    ]
    averaged = {"accuracy": "test_accuracy"}
    rows = [[arm, *(above(arm, m, averaged.get(o, o)) for m, o in columns)] for arm in arms]
    return table(["recipe above", "usual form", "usual form, rare", "averaged too", "averaged too, rare"], rows)


def parts(found: Results) -> str:
    """Return what each part earns, in points: the mean over the cells, and the least and the most of a cell."""
    metrics = {"averaged": ("test_accuracy", "few"), "plain": ("plain_accuracy", "plain_few")}
    rows = []
    for name, (arm, form), (other, other_form) in grid.PARTS:
        shared = [(cell, seed) for cell, a, seed in found if a == arm and (cell, other, seed) in found]
        gains = []
        for mine, theirs in zip(metrics[form], metrics[other_form], strict=True):
            by_cell = dict[str, list[float]]()
            for c, s in shared:
                gain = measure(found[c, arm, s], mine) - measure(found[c, other, s], theirs)
                by_cell.setdefault(c, []).append(100 * gain)
            means = [float(np.mean(each)) for each in by_cell.values()]
            gains.append(f"{np.mean(means):+.1f} ({min(means):+.1f} to {max(means):+.1f})")
        count = f"{len({c for c, _ in shared})}, {len(shared)}"
        rows.append([name, f"{arm}{_last(form)} − {other}{_last(other_form)}", *gains, count])
    return table(["part", "arms", "all classes", "rare classes", "cells, runs"], rows)


def earlier(found: dict[str, Results]) -> str:
    """Return every judged definition of the recipe minus its twin with FedCM, in points, by cell."""
    judged = found["judge"] | found["earlier"]
    arms = [arm for arm in ordered(found["earlier"], 1) if arm.startswith(grid.RECIPE)] + [grid.RECIPE]

    def gap(cell: str, arm: str, metric: str) -> str:
        ours, twin = values(judged, cell, arm, metric), values(judged, cell, TWIN, metric)
        return interval([ours[seed] - twin[seed] for seed in ours if seed in twin])

    rows = [
        [label(cell), *(gap(cell, arm, metric) for metric in ("test_accuracy", "few") for arm in arms)]
        for cell in ordered(found["judge"], 0)
    ]
    short = [arm.partition(", ")[2] or "alpha 0.1, as now" for arm in arms]
    return table(["cell", *short, *(f"{name}, rare" for name in short)], rows)


def once_complete(found: Results, make: Callable[[Results], str]) -> str:
    """Return a table of the last judgement, which nobody looks at before all of its runs are there."""
    frozen, done = json.loads(FROZEN.read_text(encoding="utf-8"))["runs"], len(_lines("final"))
    return make(found) if done == frozen else f"Not complete: {done} of {frozen} runs."


def overall(found: Results) -> str:
    """Return the recipe minus each arm over the cells that both have, with the interval over the seeds."""
    rows = []
    for arm in (arm for arm in ordered(found, 1) if arm != grid.RECIPE):
        row = []
        for metric in ("test_accuracy", "few"):
            gains = {
                (cell, seed): measure(found[cell, grid.RECIPE, seed], metric) - measure(run, metric)
                for (cell, a, seed), run in found.items()
                if a == arm and (cell, grid.RECIPE, seed) in found
            }
            test = seed_test(gains)
            row.append("–" if test is None else _bounds(test))
        rows.append([arm, *row, str(len({cell for cell, _ in gains}))])
    return table(["recipe minus", "all classes", "rare classes", "cells"], rows)


def _last(form: str) -> str:
    return "" if form == "averaged" else ", last model"


def costs(found: Results) -> str:
    """Return the bytes of each arm's round in the first cell."""
    cell = ordered(found, 0)[0]
    rows = []
    for arm in ordered(found, 1):
        runs = [run for (c, a, _), run in found.items() if (c, a) == (cell, arm)]
        if runs:
            down, up = runs[0]["bytes_down"] / 1e6, runs[0]["bytes_up"] / 1e6
            rows.append([arm, f"{down:.2f}", f"{up:.2f}"])
    return table(["", "MB down a round", "MB up a round"], rows)


def draw(found: Results) -> None:
    """Draw the accuracy on the rare classes: a line per cell, a dot per method, the recipe and FedAvg named."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    from fedwcm.reports.paper import STYLE
    from fedwcm.reports.styles import LIGHT

    mean = {(c, arm): float(np.mean([*values(found, c, arm, "few").values()])) for c, arm, _ in found}
    seeds = len({seed for _, _, seed in found})
    cells = sorted(ordered(found, 0), key=lambda cell: mean[cell, grid.RECIPE])
    shades = {grid.RECIPE: LIGHT[1], "fedavg": LIGHT[0]} | dict.fromkeys(OTHERS, "#9aa4ae")
    with mpl.rc_context(cast(Any, STYLE)):
        figure, axes = plt.subplots(figsize=(7.4, 4.4), layout="constrained")
        for arm in (*OTHERS, "fedavg", grid.RECIPE):
            size = 90 if arm == grid.RECIPE else 32
            lines = [y for y, cell in enumerate(cells) if (cell, arm) in mean]
            axes.scatter([mean[cells[y], arm] for y in lines], lines, size, color=shades[arm], zorder=3)
        axes.set_yticks(range(len(cells)), [label(cell) for cell in cells])
        axes.set(xlabel=f"accuracy, mean of {seeds} seeds", xlim=(0, 0.95))
        axes.set_title("Accuracy on the rare classes", loc="left", weight="bold", size=13, pad=28)
        notes = {grid.RECIPE: grid.RECIPE, "fedavg": "FedAvg", OTHERS[-1]: f"{len(OTHERS)} other methods"}
        for place, (arm, text) in enumerate(notes.items()):
            left, size = 0.015 + 0.31 * place, 90 if arm == grid.RECIPE else 32
            axes.scatter(left, 1.045, size, color=shades[arm], transform=axes.transAxes, clip_on=False)
            axes.text(left + 0.025, 1.045, text, va="center", transform=axes.transAxes, size=11)
        figure.savefig(FIGURE, metadata={"Date": None}, transparent=True)
        plt.close(figure)
    FIGURE.write_text(FIGURE.read_text(encoding="utf-8").replace("<defs>", DARK + "<defs>", 1), encoding="utf-8")


OTHERS = [arm for arm in grid.DRAWN if arm not in ("fedavg", grid.RECIPE)]
DARK = """<style>@media (prefers-color-scheme: dark) {
  text:not([style*="fill"]) { fill: #c9d1d9 }
  path[style*="#000000"], use[style*="#000000"] { stroke: #8b949e !important }
  [style*="#0072b2"] { fill: #56b4e9 !important; stroke: #56b4e9 !important }
  [style*="#9aa4ae"] { fill: #6e7781 !important; stroke: #6e7781 !important }
}</style>
"""
"""What makes the figure legible on a dark page."""


def label(cell: str) -> str:
    """Return the name of a cell: the data, the rarest class over the most frequent, and β."""
    name, tail, beta = cell.split()
    return f"{name}, 1:{round(1 / float(tail))}, β {beta}"


TABLES: dict[str, Callable[[dict[str, Results]], str]] = {
    "choose": lambda found: means(found["choose"], "test_accuracy"),
    "choose-rare": lambda found: means(found["choose"], "few"),
    "judge": lambda found: means(found["judge"], "test_accuracy"),
    "judge-rare": lambda found: means(found["judge"], "few"),
    "differences": lambda found: differences(found["judge"], "test_accuracy"),
    "differences-rare": lambda found: differences(found["judge"], "few"),
    "wins": lambda found: wins(found["judge"]),
    "parts": lambda found: parts(found["choose"]),
    "costs": lambda found: costs(found["judge"]),
    "earlier": earlier,
    "final": lambda found: once_complete(found["final"], overall),
    "final-wins": lambda found: once_complete(found["final"], wins),
    "final-means": lambda found: once_complete(found["final"], lambda each: means(each, "test_accuracy")),
    "final-means-rare": lambda found: once_complete(found["final"], lambda each: means(each, "few")),
    "final-cells": lambda found: once_complete(found["final"], lambda each: differences(each, "test_accuracy")),
    "final-cells-rare": lambda found: once_complete(found["final"], lambda each: differences(each, "few")),
}


def page_of(name: str) -> Path:
    """Return the page that a table is on."""
    return PAGE if name in ON_PAGE else ALL_TABLES


def main() -> None:
    """Fill in the tables between the markers of the pages, and draw the figure."""
    found = {phase: results(phase) for phase in (*PHASES, "earlier")}
    for name, make in TABLES.items():
        write_blocks(page_of(name), {name: [make(found)]})
    draw(found["final"])


if __name__ == "__main__":
    main()
