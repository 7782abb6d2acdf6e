"""The runs of the leaderboard: trials on validation data, then the chosen setting on test data.

A row's runs are lines of `results/leaderboard/ROW.jsonl`. A run that is there with the same options on the same
data is not repeated. The line of a trial has validation numbers only.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwcm.config.settings import Settings, from_settings
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.records import Summary
from fedwcm.experiment.start import start
from fedwcm.reproduction.leaderboard.board import Plan, Row
from fedwcm.reproduction.presets import Cell
from fedwcm.sweeps.execution import process_context

Record = Mapping[str, Any]
"""A line of a row's file."""

DIGITS = 5


@dataclass(frozen=True)
class Entry:
    """A row on a task: where its runs are, what is left of them, and what has come out."""

    plan: Plan
    folder: Path
    task: str
    row: Row

    @property
    def file(self) -> Path:
        """The file of the row, on all tasks."""
        return self.folder / f"{self.row.name.replace('/', '_')}.jsonl"

    @cached_property
    def records(self) -> dict[str, Record]:
        """The runs of the row that are done, by the fingerprint of their options and data."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        return {record["run"]: record for record in map(json.loads, lines)}

    def trials(self) -> list[tuple[Settings, list[Cell]]]:
        """Return the settings to try, each with its runs."""
        seeds = self.plan.board.tuning_seeds
        return [(trial, self.plan.cells(self.task, self.row, trial, seeds)) for trial in self.row.trials]

    def judged_runs(self) -> list[Cell]:
        """Return the runs of the setting that validation data has chosen; none before all trials are done."""
        chosen = self.chosen_setting()
        return [] if chosen is None else self.plan.cells(self.task, self.row, chosen, self.plan.seeds)

    def chosen_setting(self) -> Settings | None:
        """Return the setting with the best mean balanced accuracy on validation data, the first of equals."""
        values = []
        for _, cells in self.trials():
            done = [self.records.get(self.plan.key(cell)) for cell in cells]
            if any(record is None for record in done):
                return None
            values.append(np.mean([record["val"] for record in done if record is not None]))
        return self.row.trials[int(np.argmax(values))]

    def runs_left(self) -> int:
        """Return how many runs are still to be made."""
        cells = [cell for _, cells in self.trials() for cell in cells]
        left = sum(self.plan.key(cell) not in self.records for cell in cells)
        judged = self.judged_runs()
        done = sum(self.plan.key(cell) in self.records for cell in judged)
        return left + len(self.plan.seeds) - done

    def results(self) -> dict[int, Record]:
        """Return the judged runs that are done, by seed."""
        records = {cell.seed: self.records.get(self.plan.key(cell)) for cell in self.judged_runs()}
        return {seed: record for seed, record in records.items() if record is not None}


def run_entry(entry: Entry) -> Entry:
    """Run what is left of a row on a task, and add each run to the row's file when it is done."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for trial, cells in entry.trials():
            _run(entry, trial, cells, judged=False)
        _run(entry, entry.chosen_setting() or {}, entry.judged_runs(), judged=True)
    finally:
        torch.set_num_threads(threads)
    return entry


def run_entries(entries: Sequence[Entry], jobs: int, say: Callable[[str], object]) -> None:
    """Run what is left, so many rows at a time."""
    for number, entry in enumerate(_iterate_ended(entries, jobs)):
        say(f"{number + 1}/{len(entries)} {entry.task}: {entry.row.name}")


def _iterate_ended(entries: Sequence[Entry], jobs: int) -> Iterable[Entry]:
    if jobs == 1:
        yield from map(run_entry, entries)
        return
    with ProcessPoolExecutor(jobs, mp_context=process_context()) as pool:
        try:
            for ended in as_completed([pool.submit(run_entry, entry) for entry in entries]):
                yield ended.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run(entry: Entry, trial: Settings, cells: Iterable[Cell], *, judged: bool) -> None:
    for cell in cells:
        key = entry.plan.key(cell)
        if key in entry.records:
            continue
        place = {"run": key, "task": entry.task, "seed": cell.seed, "trial": trial}
        record = {**place, **_measure(cell, judged=judged)}
        entry.file.parent.mkdir(parents=True, exist_ok=True)
        with entry.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        entry.records[key] = record


def _measure(cell: Cell, *, judged: bool) -> Record:
    """Train; return the validation number and, if the setting is judged, those of the test data."""
    try:
        summary = start(from_settings(cell.settings), None, resume=False).summary
    except DivergedError as error:
        return {"val": 0.0, "diverged": str(error)}
    except ValueError as error:  # a method that the task is not for
        return {"val": 0.0, "refused": str(error)}
    assert summary is not None
    seconds = round(summary.seconds_per_round * summary.rounds, 2)
    here: Record = {"val": round(summary.val_balanced_accuracy or 0.0, DIGITS), "seconds": seconds}
    return {**here, **_judgement(summary)} if judged else here


def _judgement(summary: Summary) -> Record:
    numbers = {
        "accuracy": summary.accuracy,
        "balanced": summary.balanced_accuracy,
        "rare": summary.few,
        "ece": summary.test_ece,
    }
    curve = summary.trade_off or {}
    return {
        **{key: None if value is None else round(value, DIGITS) for key, value in numbers.items()},
        "strength": summary.chosen_strength,
        "curve": {key: [None if v is None else round(v, DIGITS) for v in column] for key, column in curve.items()},
    }
