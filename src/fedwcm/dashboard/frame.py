"""One frame of the terminal view: panels for a few runs, a table for many."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedwcm.dashboard.follow import RunState, Snapshot, Watch, WatchedRun
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.influence import client_accuracies, left_out_counts
from fedwcm.utils.text import bar, duration, short_number, sparkline

PANELS = 4
"""Runs up to which each gets a panel, if the terminal is wide enough."""

NARROWEST = 44
"""Minimum width of a panel, in characters."""

LONGEST_NAME = 14
"""Characters of the name of a class."""

COLOURS: dict[RunState, str] = {
    "waiting": "dim",
    "running": "cyan",
    "silent": "yellow",
    "finished": "green",
    "diverged": "red",
}
URGENCY: tuple[RunState, ...] = ("running", "silent", "diverged", "waiting", "finished")
"""Which runs are shown first if there is no room for all."""


def frame(snapshot: Snapshot, width: int, height: int | None) -> RenderableType:
    """Render all runs for a terminal of this size; without a height, at any length."""
    parts: list[RenderableType] = [_missing(path) for path in snapshot.missing]
    begun = [run for run in snapshot.runs if run.records or run.ended]
    if begun and len(snapshot.runs) <= PANELS and width >= NARROWEST * len(snapshot.runs):
        parts.append(_panels(snapshot.runs, width, height))
    elif snapshot.runs:
        parts.append(_rows(snapshot.runs, width, height))
    return Group(*parts)


def _missing(folder: Path) -> Text:
    waiting = "no run yet in" if folder.is_dir() else "not there yet:"  # before the path, which may be long
    return Text(f"{waiting} {folder}", style="yellow")


def status(run: WatchedRun) -> str:
    """Return the state of a run, in words."""
    if run.state == "running":
        return f"{duration(run.seconds_left)} left" if run.seconds_left is not None else "running"
    if run.state == "silent":
        return f"no record for {duration(run.age)}"
    return str(run.state)


def _panels(runs: Sequence[WatchedRun], width: int, height: int | None) -> Table:
    grid = Table.grid(expand=True)
    for _ in runs:
        grid.add_column(ratio=1)
    inside = width // len(runs) - 4
    grid.add_row(*(_panel(run, inside, height) for run in runs))
    return grid


def _panel(run: WatchedRun, width: int, height: int | None) -> Panel:
    colour = COLOURS[run.state]
    title = Text(run.label, style=f"bold {colour}", overflow="ellipsis", no_wrap=True)
    return Panel(Group(*_lines(run, width, height)), title=title, border_style=colour)


def _lines(run: WatchedRun, width: int, height: int | None) -> list[RenderableType]:
    of = f"/{run.rounds}" if run.rounds else ""
    lines: list[RenderableType] = [
        Text(f"round {run.round}{of}, {status(run)}", style=COLOURS[run.state]),
        Text(bar(run.round / run.rounds if run.rounds else 0, width), style=COLOURS[run.state]),
    ]
    if run.state == "diverged" and run.summary is not None:
        lines.append(Text(run.summary.diverged or "", style="red"))
    if not run.records:
        return lines
    for name, key, low, high in _CURVES:
        values = run.series(key)
        if values:
            lines.append(_curve(name, key, values, width, low, high))
    if counts := left_out_counts(run.records):
        often = ", ".join(f"{client} ({count}×)" for client, count in counts.most_common())
        lines.append(Text(f"left out  {often}", style="yellow", overflow="ellipsis", no_wrap=True))
        *_, why = (reason for record in run.records for reason in (record.left_out or {}).values())
        lines.append(Text(f"          last: {why}", style="yellow", overflow="ellipsis", no_wrap=True))
    if accuracies := client_accuracies(run.records[-1]):
        (worst, lowest), middle = next(iter(accuracies.items())), median(accuracies.values())
        lines.append(Text(f"on clients {middle:>6.3f} median accuracy, {lowest:.3f} the lowest ({worst})"))
    if (bound := run.records[-1].number("max_norm")) is not None:
        clipped = int(run.records[-1].number("clipped_clients") or 0)
        lines.append(Text(f"bound     {short_number(bound):>7} on norms, {clipped} scaled down"))
    if weights := run.records[-1].weights:
        lines.append(Text(f"weights   {max(weights) / (sum(weights) or 1):>7.2f} largest share of the round"))
    if run.trained_by:
        names = ", ".join(" ".join(name.split()) for name in run.trained_by)
        lines.append(Text(f"trained by {names}", overflow="ellipsis", no_wrap=True))
    return lines + _classes(run, width, None if height is None else height - len(lines) - 6)


_CURVES = (
    ("accuracy", "test_accuracy", 0.0, 1.0),
    ("many", "many", 0.0, 1.0),
    ("medium", "medium", 0.0, 1.0),
    ("few", "few", 0.0, 1.0),
    ("clients", "client_mean", 0.0, 1.0),
    ("worst 10 %", "client_worst_decile", 0.0, 1.0),
    ("test loss", "test_loss", None, None),
    ("alpha", "alpha", 0.0, 1.0),
    ("gain", "gain", 0.0, None),
    ("concentr.", "concentration", 0.0, 1.0),
)
"""The curves of a panel: name, key of the record, and the ends of the scale where they are fixed."""


def _curve(name: str, key: str, values: list[float], width: int, low: float | None, high: float | None) -> Text:
    line = Text(f"{name:<10}")
    beyond = key == "gain" and values[-1] >= 1
    line.append(f"{short_number(values[-1]):>7}", style="bold red" if beyond else "bold")
    line.append(" " + sparkline(values, width - 18, low, high), style="cyan")
    return line


def _classes(run: WatchedRun, width: int, room: int | None) -> list[RenderableType]:
    """Return one bar per class if there is room, otherwise one line with a block per class."""
    values = run.records[-1].per_class_accuracy
    if not values:
        return []
    shares = [value or 0.0 for value in values]
    if room is not None and len(shares) > room:
        line = Text("by class  ")
        return [line.append(sparkline(shares, width - 10, 0, 1), style="cyan")]
    names = run.classes if len(run.classes) == len(values) else tuple(map(str, range(len(values))))
    room_for_names = min(max(4, *map(cell_len, names)), LONGEST_NAME)
    lines: list[RenderableType] = [Text("accuracy by class", style="dim")]
    for name, value, share in zip(names, values, shares, strict=True):
        line = Text(set_cell_size(_short(name), room_for_names))
        line.append("      – " if value is None else f" {share:6.3f} ")
        lines.append(line.append(bar(share, width - room_for_names - 8), style="cyan"))
    return lines


def _short(name: str) -> str:
    """Return a name that fits, on one line."""
    name = " ".join(name.split())
    return name if cell_len(name) <= LONGEST_NAME else set_cell_size(name, LONGEST_NAME - 1) + "…"


def _rows(runs: Sequence[WatchedRun], width: int, height: int | None) -> RenderableType:
    room = len(runs) if height is None else max(1, height - 6)
    by_urgency = sorted(range(len(runs)), key=lambda number: URGENCY.index(runs[number].state))
    shown = [runs[number] for number in sorted(by_urgency[:room])]
    table = Table(expand=False, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="ellipsis", no_wrap=True, min_width=12)
    table.add_column("round", justify="right", no_wrap=True, min_width=7)
    has_groups = any(run.series("few") for run in shown)
    measures = [name for name in ("few", "alpha", "gain") if name != "few" or has_groups]
    for name in ("now", "best", *measures):
        table.add_column(name, justify="right", no_wrap=True, min_width=5)
    curve = max(8, width // 8)
    table.add_column("accuracy", no_wrap=True, min_width=curve)
    table.add_column("", no_wrap=True, min_width=12)
    for run in shown:
        table.add_row(*_row(run, curve, measures))
    return Group(table, Text(_totals(runs, len(runs) - len(shown)), style="dim"))


def _row(run: WatchedRun, curve: int, measures: Sequence[str]) -> list[RenderableType]:
    accuracy = run.series("test_accuracy")
    of = f"/{run.rounds}" if run.rounds else ""
    return [
        Text(run.label),
        Text(f"{run.round}{of}"),
        _last(accuracy),
        _last(sorted(accuracy)),
        *(_last(run.series(name), limit=1.0 if name == "gain" else math.inf) for name in measures),
        Text(sparkline(accuracy, curve, 0, 1), style="cyan"),
        Text(status(run), style=COLOURS[run.state]),
    ]


def _last(values: Sequence[float], limit: float = math.inf) -> Text:
    if not values:
        return Text("–", style="dim")
    return Text(short_number(values[-1]), style="bold red" if values[-1] >= limit else "")


def _totals(runs: Sequence[WatchedRun], hidden: int) -> str:
    counts = {state: sum(run.state == state for run in runs) for state in URGENCY}
    line = f"{len(runs)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return line + (f" ({hidden} not shown)" if hidden else "")


INTERVAL = 0.5
"""Seconds between frames."""


def watch(folders: str | Path | Sequence[str | Path], *, once: bool = False) -> None:
    """Show runs in the terminal until all have ended or Ctrl-C is pressed.

    Args:
        folders: runs, comparisons, or folders with several of either.
        once: show one frame and return, as without a terminal.
    """
    paths = [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    for path in paths:
        RunFolder(path).refuse_search()
    console, watched = Console(), Watch(paths)
    if not once and console.is_terminal:
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while not (snapshot := watched.look()).ended:
                live.update(frame(snapshot, console.width, console.height), refresh=True)
                time.sleep(INTERVAL)
    console.print(frame(watched.look(), console.width, None))
