"""Write docs/performance.md from the results that `make bench` left in benchmarks/results/latest.json.

python -m docs.make_performance_page
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.lineup import GROUPS
from benchmarks.tables import bars_table, commands_table, group_table, table

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "latest.json"
PAGE = DOCS / "performance.md"

INTRODUCTION = """\
# Performance

Made by `python -m docs.make_performance_page` from `benchmarks/results/latest.json`, which `make bench` wrote.

## How it is measured

Every contender is a process of its own, in an environment of its own, that prepares everything and then waits. The
driver lets one at a time play one round, each sweep in another order, and freezes the others meanwhile: what the
machine does to one, it does to all. A ratio is the median of the ratios within a sweep. The rounds to warm up are
not timed, and memory is watched in one more round that is not timed either.

All contenders load the same samples, divided among the same clients, and start from the same weights of the same
model. Everyone does the same local steps on freshly shuffled batches (pfl as it comes does not shuffle; a variant
does). The last columns show loss and accuracy on 2,000 training samples after the last round: who does the same
work gets about the same. Nobody evaluates during timed rounds, but where it says so.
"""

CONTENDERS = (
    (
        "plain loop",
        "what a careful person writes without a framework: one module, one resident tensor, torch's fused SGD; on "
        "one or two threads, or in two forked processes with shared memory. On J1 a step by hand (one `foreach` "
        "call on the parameters) would be a tenth faster still",
    ),
    ("pfl", "pfl-research 0.6.0, under torchrun where it has two processes, data as tensors"),
    (
        "Flower",
        "Flower 1.41.0 with its Ray simulation, two workers with one core each; the client is the plain loop's, "
        "or the one of its tutorials. On J1 its rounds take about 0.2, 0.3 or 0.4 s, and nothing between",
    ),
    (
        "FedLab",
        "FedLab 1.3.0, its serial trainer with a DataLoader; an empty module stands in for torchvision, which "
        "does not load beside this torch",
    ),
    ("fedwcm", "this package, called as `fedwcm.run`; the backend is chosen automatically unless one is named"),
)

COLUMNS = """
*Speed* is relative to the first line of a table. *Memory* is the peak of the contender and its children: what each
has to itself, and once what they share. *Start* is the time from the command to the first round.
"""


def page(results: dict[str, Any]) -> str:
    """The page for these results."""
    parts = [
        INTRODUCTION,
        table(("contender", "what it is"), CONTENDERS),
        COLUMNS,
        "## The bars\n",
        bars_table(results),
    ]
    for name, group in results["groups"].items():
        parts += [f"\n## {GROUPS[name].title}\n", _about(group), "", group_table(group)]
    if "commands" in results:
        parts += ["\n## Commands\n", _machine(results["commands"]), ""]
        parts += [commands_table(results["commands"]["seconds"])]
    return "\n".join([*parts, ""])


def _about(group: dict[str, Any]) -> str:
    timed = max((len(c["seconds"]) for c in group["contenders"].values() if "seconds" in c), default=0)
    source = f" Data: {group['source']}." if "source" in group else ""
    return f"{group['job']}.{source} Timed rounds of each contender: {timed}.\n\n{_machine(group)}"


def _machine(measured: dict[str, Any]) -> str:
    machine = measured["machine"]
    return (
        f"{machine['date']}: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['system']}, Python {machine['python']}, torch {machine['torch']}; "
        f"load average before the start {machine['load_before']}; other programs kept "
        f"{measured['other_load']:.2f} cores busy meanwhile."
    )


def main() -> None:
    """Write the page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
