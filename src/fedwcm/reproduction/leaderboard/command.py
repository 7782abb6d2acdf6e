"""`fedwcm reproduce leaderboard`: run what is left of it, and write its pages."""

from collections.abc import Callable, Iterator
from pathlib import Path

from fedwcm.reproduction.leaderboard.board import Plan, load_board, make_plan
from fedwcm.reproduction.leaderboard.measure import Entry, run_entries
from fedwcm.reproduction.leaderboard.page import NAME, write_board
from fedwcm.reproduction.pages import Pages, command_words
from fedwcm.reproduction.presets import SOURCES_IN, Scope
from fedwcm.utils.text import rough_duration


def run_board(
    scope: Scope, results: Path, pages: Path, jobs: int, say: Callable[[str], object], *, run: bool
) -> Pages:
    """Run what is left of the leaderboard, task by task, and write its pages from all that is there.

    Args:
        scope: tasks, rows, judged seeds, share of the rounds and options in place of the board's.
        results: folder whose `leaderboard/ROW.jsonl` have the runs.
        pages: folder of the pages.
        jobs: rows at a time, one thread each.
        say: called with a sentence on each row that is done.
        run: whether to run anything.
    """
    board = load_board()
    plan = make_plan(board, scope)
    missing = {name: source for name in plan.tasks if (source := board.tasks[name].missing)}
    for name, source in missing.items():
        say(f"{name}: {board.tasks[name].dataset} is not in the folder that {SOURCES_IN} names: {source}")
    entries = list(_entries(plan, results / NAME))
    left = [entry for entry in entries if entry.task not in missing and entry.runs_left()]
    if run and left:
        runs, seconds = sum(entry.runs_left() for entry in left), _seconds(entries)
        say(f"{board.title}: {runs} runs left of {len(left)} rows, {seconds}")
        run_entries(left, jobs, say)
        entries = list(_entries(plan, results / NAME))
    return write_board(plan, entries, " ".join(["fedwcm reproduce", NAME, *command_words(scope)]), pages)


def _entries(plan: Plan, folder: Path) -> Iterator[Entry]:
    for task in plan.tasks:
        for row in plan.rows.values():
            yield Entry(plan, folder, task, row)


def _seconds(entries: list[Entry]) -> str:
    """Say how long the rest takes with one job, at the pace of the stored runs of each task."""
    total = 0.0
    for task in {entry.task for entry in entries}:
        own = [entry for entry in entries if entry.task == task]
        known = [
            r["seconds"] for entry in own for r in entry.records.values() if r["task"] == task and "seconds" in r
        ]
        if not known:
            return "time not known before each task has some"
        total += sum(known) / len(known) * sum(entry.runs_left() for entry in own)
    return f"about {rough_duration(total)} of one core"
