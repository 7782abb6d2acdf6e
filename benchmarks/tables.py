"""The results as Markdown tables, on the screen and in the documentation."""

from collections.abc import Iterable, Sequence
from statistics import median, quantiles
from typing import Any

from benchmarks.bars import BARS, Results, paired_ratio


def bars_table(results: Results) -> str:
    """Every bar, what was measured, and whether it holds."""
    return table(("", "bar", "measured", ""), (bar.line(results) for bar in BARS))


def group_table(group: dict[str, Any]) -> str:
    """A line a contender: seconds a round, and how that compares with the first one in the table."""
    contenders: dict[str, dict[str, Any]] = group["contenders"]
    reference: list[float] = next((c["seconds"] for c in contenders.values() if "error" not in c), [])
    head = ("", "s/round", "quartiles", "speed", "memory", "start", "loss", "accuracy")
    return table(head, (_line(name, entry, reference) for name, entry in contenders.items()))


def _line(name: str, entry: dict[str, Any], reference: list[float]) -> tuple[str, ...]:
    if "error" in entry:
        return (name, entry["error"], *[""] * 6)
    seconds = entry["seconds"]
    low, _, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return (
        name,
        f"{median(seconds):.4g}",
        f"{low:.4g} – {high:.4g}",
        f"{paired_ratio(reference, seconds):.2f} ×",
        f"{entry['memory_bytes'] / 1e6:.0f} MB",
        f"{entry['ready_seconds']:.1f} s",
        f"{entry['loss']:.3f}",
        f"{entry['accuracy']:.3f}",
    )


def commands_table(seconds: dict[str, list[float]]) -> str:
    """A line a command: the median and all that were measured."""
    return table(
        ("", "median", "all"),
        ((name, f"{median(t):.2f} s", ", ".join(f"{s:.2f}" for s in t)) for name, t in seconds.items()),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
