"""Figures in colours: who holds what, who counts how much, what is taken for what."""

from collections.abc import Sequence

import numpy as np

from fedwcm.reports.figures import Cells, Grid, Number, thinned
from fedwcm.reports.load import LoadedRun, MethodRuns
from fedwcm.reports.series import head_to_tail
from fedwcm.runs.folder import Record

GRID_CELLS = 20_000
"""Cells up to which a matrix is drawn whole."""

CHOICE_CELLS = 40_000
"""Cells of all matrices of one kind that a page carries together."""

MOST_CLASSES = 200
"""Classes up to which a confusion matrix says anything to the eye."""

FEWEST_ROUNDS = 20
"""Rounds that a matrix of weights must have room for."""


def split(runs: Sequence[LoadedRun]) -> Grid | None:
    """Samples of each client and class. Different divisions of the same samples are there to choose from."""
    first = next((run for run in runs if run.split), None)
    if first is None or first.split is None:
        return None
    clients, every = int(str(first.split["clients"])), int(str(first.split["every"]))
    held = range(0, clients, every)
    drawn = thinned(len(held), max(1, GRID_CELLS // max(1, len(first.classes))))
    order = head_to_tail(first)
    divisions = _divisions(first, runs)[: max(1, CHOICE_CELLS // max(1, len(drawn) * len(order)))]
    seeds_tell = len({run.seed for run in divisions}) == len(divisions)
    choices = []
    for run in divisions:
        counts = _counts(run)
        name = f"seed {run.seed}" if seeds_tell else f"{run.label}, seed {run.seed}"
        choices.append(Cells(name, [[counts[i][c] or None for i in drawn] for c in order]))
    shown = f" {len(drawn)} of {clients:,} clients are drawn, evenly spaced." if len(drawn) < clients else ""
    return Grid(
        key="split",
        title="Who holds what",
        caption="Samples of each class (the most frequent on top) at each client; blank is none." + shown,
        columns=[str(held[i]) for i in drawn],
        lines=[first.classes[c] for c in order],
        choices=choices,
        x_label="client",
        y_label="class",
        value_label="samples",
        log=True,
        wide=True,
    )


def weights(run: LoadedRun) -> Grid | None:
    """Clients × rounds, coloured by how much more than an even share a client counted."""
    records = [record for record in run.history if record.get("clients")]
    clients = sorted({client for record in records for client in _list(record, "clients")})
    if not records or len(clients) * FEWEST_ROUNDS > GRID_CELLS:
        return None
    records = [records[i] for i in thinned(len(records), GRID_CELLS // len(clients))]
    rows: dict[object, list[Number]] = {client: [None] * len(records) for client in clients}
    for column, record in enumerate(records):
        for client, share in zip(_list(record, "clients"), even_shares(record), strict=True):
            rows[client][column] = share
    return Grid(
        key="weights",
        title="Weights of the clients over rounds",
        caption="1 is an even share: 2 counts twice as much. Blank where a client was not in the round.",
        columns=[str(record["round"]) for record in records],
        lines=[str(client) for client in clients],
        choices=[Cells(run.label, list(rows.values()))],
        x_label="round",
        y_label="client",
        value_label="weight over an even share",
        wide=True,
    )


def confusion(groups: Sequence[MethodRuns]) -> Grid | None:
    """Classes from head to tail, each row summing to 1. A group sums over its runs; the reader picks a group."""
    first = groups[0].runs[0]
    order = head_to_tail(first)
    order += [i for i in range(len(first.classes)) if i not in order]
    tested = [group for group in groups if any(run.summary.get("confusion") for run in group.runs)]
    if not tested or len(order) > MOST_CLASSES:
        return None
    names = [first.classes[i] for i in order]
    return Grid(
        key="confusion",
        title="Confusion matrix",
        caption="Of the test samples of a class (row), the share that was taken for each class (column), at "
        "the end of training. The diagonal is right; a dark column is a class that swallows others.",
        columns=names,
        lines=names,
        choices=[_mistakes(group, order) for group in tested[: max(1, CHOICE_CELLS // len(order) ** 2)]],
        x_label="predicted class",
        y_label="true class",
        value_label="share of the true class",
        bounds=(0, 1),
        square=True,
    )


def even_shares(record: Record) -> list[float]:
    """The weight of each client of a round over an even share of all weights."""
    values = np.array(_list(record, "weights"), dtype=float)
    total = values.sum()
    shares: list[float] = (values * len(values) / (total if total else 1.0)).tolist()
    return shares


def _mistakes(group: MethodRuns, order: list[int]) -> Cells:
    matrices = [np.array(run.summary["confusion"]) for run in group.runs if run.summary.get("confusion")]
    total = np.sum(matrices, axis=0)[np.ix_(order, order)]
    shares = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    return Cells(group.label, [[share or None for share in row] for row in shares.tolist()])


def _divisions(first: LoadedRun, runs: Sequence[LoadedRun]) -> list[LoadedRun]:
    """One run for each different division of the same samples among as many clients."""
    assert first.split is not None
    alike = ("classes", "clients", "totals")
    found: dict[str, LoadedRun] = {}
    for run in runs:
        if run.split and all(run.split[key] == first.split[key] for key in alike):
            found.setdefault(str(run.split["counts"]), run)
    return list(found.values())


def _counts(run: LoadedRun) -> list[list[int]]:
    counts = (run.split or {})["counts"]
    assert isinstance(counts, list)
    return counts


def _list(record: Record, key: str) -> list[int]:
    values = record.get(key)
    return values if isinstance(values, list) else []
