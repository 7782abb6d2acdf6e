"""The figures that one run and several share: split, weights, confusion, clients, trade-off, reliability."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedwcm.core.types import Ints
from fedwcm.experiment.records import PartitionRecord
from fedwcm.experiment.run import Run
from fedwcm.reports.figures import Bar, Bars, Curve, Curves, Figure, Heatmap, Matrix, Number, thin_curve
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.series import head_to_tail
from fedwcm.reports.statistics import spread, spread_if_any
from fedwcm.reports.text import count_nouns

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
    return [np.array(summary.confusion) for summary in group.summaries if summary.confusion]


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


MOST_CLIENTS, WIDE_FROM = 100, 20
"""Clients up to which each gets a bar, and bars from which their figure is wide."""


def client_bars(groups: Sequence[MethodRuns]) -> Bars | None:
    """Return the accuracy of each client, mean over the seeds; the worst client first."""
    accuracies = {group.label: _accuracies(group) for group in groups if _accuracies(group)}
    names = dict.fromkeys(name for values in accuracies.values() for name in values)
    if not accuracies or len(names) > MOST_CLIENTS:
        return None
    first = next(iter(accuracies.values()))
    ranked = sorted(names, key=lambda name: spread(first[name]).mean if name in first else 1.0)
    alone = len(groups) == 1 and len(groups[0].runs) == 1
    return Bars(
        key="client-accuracy",
        title="Accuracy of each client",
        caption="Test accuracy of the model that is kept, the worst client first"
        + ("." if len(groups) == 1 else f" by {next(iter(accuracies))}."),
        by_method=not alone,
        categories=ranked,
        bars=[_bar("test accuracy" if alone else label, values, ranked) for label, values in accuracies.items()],
        x_label="client",
        y_label="accuracy",
        bounds=(0, 1),
        wide=len(ranked) * len(accuracies) > WIDE_FROM,
    )


def fine_tuned_bars(run: Run) -> Bars | None:
    """Return the accuracy of each client before and after it has fine-tuned the model, sorted by the former."""
    record = run.personalized
    if record is None or len(record.client_accuracy) > MOST_CLIENTS:
        return None
    before, after = record.client_accuracy_before, record.client_accuracy
    ranked = sorted(after, key=lambda name: before[name])
    layers = "all layers" if record.layers == "all" else "the last layer"
    return Bars(
        key="fine-tuned",
        title="Each client before and after fine-tuning",
        caption="Test accuracy at the client, of the model that is kept and after the client has trained it on: "
        f"{count_nouns(record.epochs, 'epoch')}, {layers}, learning rate {record.lr:g}.",
        categories=ranked,
        bars=[Bar("before", [before[n] for n in ranked]), Bar("after", [after[n] for n in ranked])],
        x_label="client",
        y_label="accuracy",
        bounds=(0, 1),
        wide=2 * len(ranked) > WIDE_FROM,
    )


def _accuracies(group: MethodRuns) -> dict[str, list[float]]:
    """Return the accuracies of each client over the seeds."""
    by_client: dict[str, list[float]] = {}
    for summary in group.summaries:
        for name, value in (summary.client_accuracy or {}).items():
            by_client.setdefault(name, []).append(value)
    return by_client


def _bar(label: str, values: Mapping[str, Sequence[float]], names: Sequence[str]) -> Bar:
    return Bar.of(label, [spread_if_any(values.get(name, ())) for name in names])


Columns = Mapping[str, Sequence[float | None]]

MOVED = (
    "Each point is the same model with t · log p added to its logits, p the class distribution of the training "
    "data. The circle is {point}. Compare whole curves, not points."
)


def probability_figures(groups: Sequence[MethodRuns]) -> list[Figure]:
    """Return the figures that these runs have numbers for."""
    unbalanced = any(summary.has_unbalanced_test_set for group in groups for summary in group.summaries)
    figures = [
        _trade_off(groups, "balanced_accuracy", "balanced accuracy") if unbalanced else None,
        _trade_off(groups, "few", "accuracy of rare classes"),
        _reliability(groups),
    ]
    return [figure for figure in figures if figure is not None]


def _trade_off(groups: Sequence[MethodRuns], key: str, title: str) -> Curves | None:
    curves = [curve for group in groups if (curve := _moved_curve(group, key)) is not None]
    if not curves:
        return None
    chosen = any(summary.chosen_strength is not None for group in groups for summary in group.summaries)
    point = "the t that is best on the validation data" if chosen else "the model as it was trained (t = 0)"
    return Curves(
        key=f"trade-off-{key.replace('_', '-')}",
        title=f"Accuracy against {title}",
        caption=MOVED.format(point=point),
        curves=curves,
        x_label="accuracy",
        y_label=title,
        bounds=(0, 1),
        by_method=len(groups) > 1,
        comparable=True,
    )


def _moved_curve(group: MethodRuns, key: str) -> Curve | None:
    """Return the mean curve of a method over its seeds, at the strengths that all of them have."""
    runs = [(summary.trade_off, summary.chosen_strength or 0.0) for summary in group.summaries]
    tables = [(_by_strength(columns, key), chosen) for columns, chosen in runs if columns is not None]
    shared = sorted(set.intersection(*(set(table) for table, _ in tables))) if tables else []
    if not shared:
        return None
    middle = np.mean([[table[t] for t in shared] for table, _ in tables], axis=0)
    x, y = np.mean([table[chosen] for table, chosen in tables], axis=0)
    return Curve(group.label, middle[:, 0].tolist(), middle[:, 1].tolist(), point=(float(x), float(y)))


def _by_strength(columns: Columns, key: str) -> dict[float, tuple[float, float]]:
    rows = zip(columns["strength"], columns["test_accuracy"], columns[key], strict=True)
    return {t: (x, y) for t, x, y in rows if t is not None and x is not None and y is not None}


def _reliability(groups: Sequence[MethodRuns]) -> Curves | None:
    curves = [curve for group in groups if (curve := _reliability_curve(group)) is not None]
    if not curves:
        return None
    return Curves(
        key="reliability",
        title="Reliability of the probabilities",
        caption="Of the test samples that were predicted with some confidence, the share that is right. Where it "
        "is below the confidence, the model is too sure. The mean gap is the calibration error (test_ece).",
        curves=[*curves, *([] if len(groups) > 1 else [Curve("as it should be", (0.0, 1.0), (0.0, 1.0))])],
        x_label="confidence",
        y_label="share that is right",
        bounds=(0, 1),
        by_method=len(groups) > 1,
        comparable=True,
    )


def _reliability_curve(group: MethodRuns) -> Curve | None:
    """Return the accuracy over the confidence, of the test samples of all seeds together."""
    tables = [summary.reliability for summary in group.summaries if summary.reliability is not None]
    if not tables:
        return None
    samples = np.array([table["samples"] for table in tables], dtype=float)
    known = samples.sum(axis=0) > 0
    x, y = (
        (np.nan_to_num(np.array([table[key] for table in tables], dtype=float)) * samples).sum(axis=0)[known]
        / samples.sum(axis=0)[known]
        for key in ("confidence", "accuracy")
    )
    return Curve(group.label, x.tolist(), y.tolist())
