"""What `fedwcm compare --dry-run` prints: the runs, and their expected time and memory."""

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from fedwcm.cli.console import console
from fedwcm.core.checks import require
from fedwcm.engine.backends.plan import threads
from fedwcm.sweeps.estimate import MODEL, Cost, Estimate, estimates, total
from fedwcm.sweeps.plan import PlannedRun, check
from fedwcm.utils.durations import duration


def dry_run(planned_runs: Sequence[PlannedRun], jobs: int) -> None:
    """Check the runs of a comparison, and print them with an estimate; nothing is written."""
    require(jobs >= 1, "jobs", jobs, "at least 1")
    with threads(1):  # trials are forked: with several threads here, those of a trial would wait for ever
        check(planned_runs)
    rows = estimates(planned_runs, jobs)
    table = Table("method", box=box.SIMPLE)
    for heading in ("seeds", "rounds", "time per run", "memory"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    screen = console()
    screen.print(table)
    whole, runs = total(rows, jobs), sum(row.runs for row in rows)
    left = runs - sum(row.finished for row in rows)
    done = f" ({runs - left} of them finished)" if left < runs else ""
    at_a_time = f", {jobs} at a time" if jobs > 1 else ""
    screen.print(
        f"{runs} run{'s' * (runs != 1)}{done}{at_a_time}: about {_time(whole.seconds)}, "
        f"{_gigabytes(whole.bytes)} of memory.",
        MODEL,
        sep="\n",
    )


def _cells(row: Estimate) -> list[str]:
    seeds = f"{row.runs}" + (f" ({row.finished} done)" if row.finished else "")
    fixed = [escape(row.label), seeds, str(row.rounds)]
    if isinstance(row.cost, Cost):
        return [*fixed, _time(row.cost.seconds), _gigabytes(row.cost.bytes)]
    return [*fixed, escape(row.cost or "–"), "–"]


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
