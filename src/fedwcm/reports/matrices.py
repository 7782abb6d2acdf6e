"""Heatmaps: the split of the data, the weights of the clients, the confusion matrix."""

from collections.abc import Sequence

import numpy as np

from fedwcm.core.types import Ints
from fedwcm.experiment.records import PartitionRecord
from fedwcm.experiment.run import Run
from fedwcm.reports.figures import Heatmap, Matrix, Number, thin_curve
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.series import head_to_tail

MATRIX_CELLS = 20_000
"""Cells up to which a matrix is drawn whole."""

FIGURE_CELLS = 40_000
"""Cells of all matrices of one figure together."""

MOST_CLASSES = 200
"""Classes up to which a confusion matrix is readable."""

FEWEST_ROUNDS = 20
"""Rounds that the matrix of weights must have room for."""


def split(runs: Sequence[Run]) -> Heatmap | None:
    """Return samples of each client and class. The reader picks among different divisions of the same samples."""
    known = [(run, run.partition) for run in runs if run.partition is not None]
    if not known:
        return None
    first, shared = known[0]
    listed = range(0, shared.clients, shared.every)
    drawn = thin_curve(len(listed), max(1, MATRIX_CELLS // max(1, len(first.classes))))
    order = head_to_tail(first)
    divisions = _divisions(shared, known)[: max(1, FIGURE_CELLS // max(1, len(drawn) * len(order)))]
    seeds_tell = len({run.seed for run, _ in divisions}) == len(divisions)
    matrices = [
        Matrix(
            f"seed {run.seed}" if seeds_tell else f"{run.label}, seed {run.seed}",
            [[partition.counts[i][c] or None for i in drawn] for c in order],
        )
        for run, partition in divisions
    ]
    left_out = len(drawn) < shared.clients
    note = f" {len(drawn)} of {shared.clients:,} clients are drawn, evenly spaced." if left_out else ""
    return Heatmap(
        key="split",
        title="Who holds what",
        caption="Samples of each class (the most frequent on top) at each client; blank is none." + note,
        column_labels=[shared.client_name(listed[i]) for i in drawn],
        row_labels=[first.classes[c] for c in order],
        matrices=matrices,
        x_label="client",
        y_label="class",
        value_label="samples",
        log=True,
        wide=True,
    )


def weights(run: Run) -> Heatmap | None:
    """Return clients × rounds, coloured by the client's weight relative to an even share; None if all are even."""
    listed = [
        (record.round, dict(zip(record.clients, even_shares(record.weights), strict=True)))
        for record in run.history
        if record.clients and record.weights
    ]
    clients = sorted({client for _, shares in listed for client in shares})
    even = all(np.isclose(share, 1.0) for _, shares in listed for share in shares.values())
    if not listed or even or len(clients) * FEWEST_ROUNDS > MATRIX_CELLS:
        return None
    listed = [listed[i] for i in thin_curve(len(listed), MATRIX_CELLS // len(clients))]
    rows: list[list[Number]] = [[shares.get(client) for _, shares in listed] for client in clients]
    return Heatmap(
        key="weights",
        title="Weights of the clients over rounds",
        caption="1 is an even share: 2 counts twice as much. Blank where a client was not in the round.",
        column_labels=[str(number) for number, _ in listed],
        row_labels=[run.partition.client_name(client) if run.partition else str(client) for client in clients],
        matrices=[Matrix(run.label, rows)],
        x_label="round",
        y_label="client",
        value_label="weight over an even share",
        wide=True,
    )


def confusion(groups: Sequence[MethodRuns]) -> Heatmap | None:
    """Return the classes from head to tail, each row summing to 1. One matrix per group, summed over its runs."""
    first = groups[0].runs[0]
    order = head_to_tail(first)
    order += [i for i in range(len(first.classes)) if i not in order]
    tested = {group.label: confusions for group in groups if (confusions := _confusions(group))}
    if not tested or len(order) > MOST_CLASSES:
        return None
    names = [first.classes[i] for i in order]
    shown = list(tested.items())[: max(1, FIGURE_CELLS // len(order) ** 2)]
    return Heatmap(
        key="confusion",
        title="Confusion matrix",
        caption="Of the test samples of a class (row), the share that was taken for each class (column), by "
        "the model that is kept. The diagonal is right; a dark column is a class that swallows others.",
        column_labels=names,
        row_labels=names,
        matrices=[Matrix(label, _row_shares(confusions, order)) for label, confusions in shown],
        x_label="predicted class",
        y_label="true class",
        value_label="share of the true class",
        bounds=(0, 1),
        square=True,
    )


def even_shares(weights: Sequence[float]) -> list[float]:
    """Return the weight of each client of a round, relative to an even share of all weights."""
    values = np.array(weights, dtype=float)
    total = values.sum()
    shares: list[float] = (values * len(values) / (total if total else 1.0)).tolist()
    return shares


def _confusions(group: MethodRuns) -> list[Ints]:
    summaries = [run.summary for run in group.runs if run.summary is not None]
    return [np.array(summary.confusion) for summary in summaries if summary.confusion]


def _row_shares(matrices: Sequence[Ints], order: list[int]) -> list[list[Number]]:
    """Return the sum of the matrices, rows and columns in this order, each row divided by its sum."""
    total = np.sum(matrices, axis=0)[np.ix_(order, order)]
    shares = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    return [[share or None for share in row] for row in shares.tolist()]


def _divisions(
    first: PartitionRecord, known: Sequence[tuple[Run, PartitionRecord]]
) -> list[tuple[Run, PartitionRecord]]:
    """Return one run for each different division of the same samples among as many clients."""

    def samples(partition: PartitionRecord) -> tuple[object, ...]:
        return partition.classes, partition.clients, partition.totals

    divisions: dict[object, tuple[Run, PartitionRecord]] = {}
    for run, partition in known:
        if samples(partition) == samples(first):
            divisions.setdefault(partition.counts, (run, partition))
    return list(divisions.values())
