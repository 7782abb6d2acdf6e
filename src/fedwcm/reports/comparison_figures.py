"""The figures of a comparison: one series per method, mean and spread over its seeds."""

from collections.abc import Sequence
from dataclasses import replace

from fedwcm.reports.figures import Bar, Bars, Curves, Estimates, Figure, Heatmap, Intervals, Matrix
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.series import (
    Measure,
    at_end,
    class_accuracy,
    class_share,
    curves,
    head_to_tail,
    layers,
    megabytes,
    metric,
    seconds_per_round,
)
from fedwcm.reports.shared_figures import client_bars, confusion, probability_figures, split
from fedwcm.reports.statistics import MARGIN, Difference, spread_if_any
from fedwcm.reports.table import FIRST, tasks_of

MANY_METHODS, MANY_CLASSES = 8, 20
"""Methods, or classes, from which the accuracy per class is a heat map."""

NARROW_BARS = 20
"""Bars up to which a figure has room beside another."""


def comparison_figures(groups: Sequence[MethodRuns], limit: int) -> list[Figure]:
    """Return the figures that these runs have numbers for, curves with at most `limit` points."""
    over_rounds = {figure.key: _fill(figure, groups, limit) for figure in OVER_ROUNDS}
    alike = len({group.runs[0].classes for group in groups}) == 1
    figures = [
        paired_differences(groups),
        over_rounds["test-accuracy"],
        class_figure(groups) if alike else None,
        over_rounds["few"],
        over_rounds["test-loss"],
        _bars(SHOTS, groups, list(map(at_end, SHOTS.categories))),
        *probability_figures(groups),
        *own_metrics(groups, limit),
        over_rounds["train-loss"],
        over_rounds["train-set-accuracy"],
        over_rounds["client-mean"],
        over_rounds["client-worst-decile"],
        client_bars(groups),
        over_rounds["alpha"],
        over_rounds["gain"],
        over_rounds["weights-entropy"],
        over_rounds["concentration"],
        layer_bars(groups),
        over_rounds["minority-angle"],
        confusion(groups) if alike else None,
        split([run for group in groups for run in group.runs]),
        _bars(BYTES, groups, [megabytes]),
        _bars(SECONDS, groups, [seconds_per_round]),
    ]
    return [figure for figure in figures if figure is not None]


OVER_ROUNDS = (
    Curves(
        key="test-accuracy",
        title="Test accuracy over rounds",
        caption="On the test data.",
        y_label="accuracy",
        bounds=(0, 1),
        wide=True,
    ),
    Curves(
        key="test-loss",
        title="Test loss over rounds",
        caption="On the test data.",
        y_label="loss",
        bounds=(0, None),
    ),
    Curves(
        key="few",
        title="Rare classes over rounds",
        caption="Mean test accuracy of the classes with few training samples.",
        y_label="accuracy",
        bounds=(0, 1),
    ),
    Curves(
        key="train-loss",
        title="Training loss over rounds",
        caption="Mean over the clients' local steps, before their models are merged.",
        y_label="loss",
        bounds=(0, None),
    ),
    Curves(
        key="train-set-accuracy",
        title="Accuracy on all training data over rounds",
        caption="Of the model that all share, on the training samples of all clients.",
        y_label="accuracy",
        bounds=(0, 1),
    ),
    Curves(
        key="client-mean",
        title="Mean accuracy of the clients over rounds",
        caption="Test accuracy, each client counts once.",
        y_label="accuracy",
        bounds=(0, 1),
    ),
    Curves(
        key="client-worst-decile",
        title="Worst clients over rounds",
        caption="Mean test accuracy of the worst tenth of the clients.",
        y_label="accuracy",
        bounds=(0, 1),
    ),
    Curves(
        key="alpha",
        title="Alpha over rounds",
        caption="The share of the fresh gradient in a local step.",
        y_label="alpha",
        bounds=(0, 1),
    ),
    Curves(
        key="gain",
        title="Gain of the momentum over rounds",
        caption="By how much the momentum feeds itself: at 1 or more it grows round by round, whatever the data.",
        y_label="gain",
        mark=1.0,
    ),
    Curves(
        key="weights-entropy",
        title="Entropy of the clients' weights",
        caption="The logarithm of the number of clients where all count the same; less where some count more.",
        y_label="entropy (nats)",
    ),
    Curves(
        key="concentration",
        title="Neuron concentration over rounds",
        caption="1: every neuron fires for one class only; 0: all fire for all alike. Mean over the layers.",
        y_label="neuron concentration",
    ),
    Curves(
        key="minority-angle",
        title="Angle between the rows of rare classes",
        caption="Mean angle between their rows of the last layer. Under minority collapse it falls.",
        y_label="degrees",
    ),
)
"""The figures over rounds, still without curves. The key names the metric of the records, with dashes."""


def own_metrics(groups: Sequence[MethodRuns], limit: int) -> list[Curves]:
    """Return each metric of `run.metrics` over rounds."""
    records = (record for group in groups for run in group.runs for record in run.history[-1:])
    return [
        Curves(
            key=f"metric-{name}",
            title=f"{name} over rounds",
            caption="On the test data.",
            y_label=name,
            curves=curves(groups, metric("metrics", name), limit),
            by_method=True,
        )
        for name in dict.fromkeys(name for record in records for name in record.metrics or ())
    ]


def paired_differences(groups: Sequence[MethodRuns]) -> Intervals | None:
    """Return how far the best method is ahead of each other one, over all classes and over the rare ones."""
    tasks = tasks_of(groups)
    rows: dict[str, list[Difference | None]] = {}
    for task in tasks:
        rare = {(pair.method, pair.other): pair for pair in task.pairs("few")}
        for pair in task.against_best():
            name = f"{pair.other} ({task.name})" if len(tasks) > 1 else pair.other
            if pair.test is not None:
                one, other = pair.method, pair.other
                few = rare.get((one, other)) or _turn(rare.get((other, one)))
                rows[name] = [pair, few if few is not None and few.test is not None else None]
    if not rows:
        return None
    best = tasks[0].against_best()[0].method if len(tasks) == 1 else "the best of its task"
    series = [
        _estimates(name, [row[i] for row in rows.values()])
        for i, name in enumerate(("all classes", "rare classes"))
    ]
    return Intervals(
        key="differences",
        title="How far the best is ahead",
        caption=f"{best} minus each other method, paired by seed, with intervals at the level of the verdict: one "
        f"that reaches 0 is undecided, one within {MARGIN} of 0 is equivalence.",
        row_labels=list(rows),
        series=[one for one in series if any(mean is not None for mean in one.means)],
        x_label=f"difference in {FIRST[tasks[0].first]}",
        wide=True,
    )


def _turn(pair: Difference | None) -> Difference | None:
    """Return the same pair, seen from the other method."""
    if pair is None or pair.test is None:
        return None
    turned = replace(pair.test, mean=-pair.test.mean)
    return replace(pair, method=pair.other, other=pair.method, test=turned, ahead=not pair.ahead)


def _estimates(name: str, differences: Sequence[Difference | None]) -> Estimates:
    tested = [
        (pair.test.mean, *pair.interval) if pair and pair.test else (None, None, None) for pair in differences
    ]
    return Estimates(name, *([row[i] for row in tested] for i in range(3)))


def class_figure(groups: Sequence[MethodRuns]) -> Bars | Heatmap | None:
    """Return the accuracy of each class: bars side by side, or a heat map where these would be too many."""
    bars = class_bars(groups)
    if bars is None or (len(bars.bars) < MANY_METHODS and len(bars.categories) < MANY_CLASSES):
        return bars
    return Heatmap(
        key=bars.key,
        title=bars.title,
        caption=f"{bars.caption} A row per method.",
        column_labels=bars.categories,
        row_labels=[one.name for one in bars.bars],
        matrices=[Matrix("all methods", [one.values for one in bars.bars])],
        x_label=bars.x_label,
        y_label="method",
        value_label=bars.y_label,
        bounds=(0, 1),
        wide=True,
    )


def class_bars(groups: Sequence[MethodRuns]) -> Bars | None:
    """Return the accuracy of each class at the end, from head to tail, on average where runs have other tails."""
    runs = [group.runs[0] for group in groups]
    order = sorted(
        {i for run in runs for i in head_to_tail(run)}, key=lambda i: -sum(class_share(r, i) for r in runs)
    )
    names = [runs[0].classes[i] for i in order]
    tails = {tuple(f"{class_share(run, i):.2g} %" for i in order) for run in runs}
    if len(tails) == 1:
        names = [f"{name} ({share})" for name, share in zip(names, *tails, strict=True)]
    figure = Bars(
        key="classes",
        title="Accuracy per class, from head to tail",
        caption="At the end of training, classes by their share of the training data.",
        categories=names,
        x_label="class and its share of the training data" if len(tails) == 1 else "class",
        y_label="test accuracy",
        bounds=(0, 1),
    )
    return _bars(figure, groups, [class_accuracy(index) for index in order])


SHOTS = Bars(
    key="shots",
    title="Classes with many, medium and few samples",
    caption="Mean test accuracy, at the end, of the classes with many, medium and few training samples.",
    categories=("many", "medium", "few"),
    x_label="training samples of the classes",
    y_label="test accuracy",
    bounds=(0, 1),
)
BYTES = Bars(
    key="bytes",
    title="Bytes of a round",
    caption="Sent and received, all clients together.",
    y_label="MB",
)
SECONDS = Bars(
    key="seconds",
    title="Seconds of a round",
    caption="Evaluation included.",
    y_label="seconds",
)


def layer_bars(groups: Sequence[MethodRuns]) -> Bars | None:
    """Return the neuron concentration of each layer, a bar per method."""
    names = list(dict.fromkeys(name for group in groups for name in layers(group.runs[0])))
    figure = Bars(
        key="concentration-layers",
        title="Neuron concentration of each layer",
        caption="At the end of training, from the first layer to the last.",
        categories=names,
        x_label="layer",
        y_label="neuron concentration",
    )
    return _bars(figure, groups, [at_end("concentration_layers", name) for name in names])


def _fill(figure: Curves, groups: Sequence[MethodRuns], limit: int) -> Curves | None:
    lines = curves(groups, metric(figure.key.replace("-", "_")), limit)
    if not lines:
        return None
    return replace(figure, curves=lines, by_method=True)


def _bars(figure: Bars, groups: Sequence[MethodRuns], measures: Sequence[Measure]) -> Bars | None:
    """Return the figure with a series per method and a bar per measure, without methods that have no values."""
    rows = {group.label: [spread_if_any(map(measure, group.counted)) for measure in measures] for group in groups}
    bars = [Bar.of(label, values) for label, values in rows.items() if any(values)]
    if not bars:
        return None
    wide = len(figure.categories) * len(bars) > NARROW_BARS
    return replace(figure, bars=bars, by_method=True, wide=wide)
