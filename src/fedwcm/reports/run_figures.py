"""The figures of one run."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.run import Run
from fedwcm.reports.figures import Curve, Curves, Figure, Scatter, ScatterSeries
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.series import Reader, class_share, curve, head_to_tail, layers, metric, shots_of
from fedwcm.reports.shared_figures import (
    client_bars,
    confusion,
    even_shares,
    fine_tuned_bars,
    probability_figures,
    split,
    weights,
)


def run_figures(run: Run, limit: int) -> list[Figure]:
    """Return the figures that this run has numbers for, curves with at most `limit` points."""
    over_rounds = {figure.key: _fill(figure, run, fields, limit) for figure, fields in OVER_ROUNDS}
    alone = [MethodRuns(run.label, (run,))]
    figures = [
        over_rounds["accuracy"],
        over_rounds["loss"],
        class_scatter(run),
        confusion(alone),
        split([run]),
        over_rounds["shots"],
        *probability_figures(alone),
        own_metrics(run, limit),
        over_rounds["clients"],
        client_bars(alone),
        fine_tuned_bars(run),
        over_rounds["momentum"],
        over_rounds["weight-range"],
        weights(run),
        concentration(run, limit),
        layer_curves(run, limit),
        over_rounds["angles"],
        over_rounds["bytes"],
        over_rounds["seconds"],
    ]
    return [figure for figure in figures if figure is not None]


def own_metrics(run: Run, limit: int) -> Curves | None:
    """Return the metrics of `run.metrics` over rounds."""
    names = dict.fromkeys(name for record in run.history for name in record.metrics or ())
    figure = Curves(
        key="own-metrics", title="Metrics of the run's own", caption="On the test data.", y_label="value"
    )
    return _fill(figure, run, {name: metric("metrics", name) for name in names}, limit)


def _weight(fraction: float) -> Reader:
    """Return a reader of a quantile of the weights of a round."""

    def read(record: RoundRecord) -> float | None:
        return float(np.quantile(even_shares(record.weights), fraction)) if record.weights else None

    return read


OVER_ROUNDS: tuple[tuple[Curves, dict[str, Reader]], ...] = (
    (
        Curves(
            key="accuracy",
            title="Accuracy over rounds",
            caption="Training accuracy is that of the clients on their own data while they train: where their "
            "data differs it says little about the model that all share (--diagnostics train_set measures that).",
            y_label="accuracy",
            bounds=(0, 1),
        ),
        {
            "test": metric("test_accuracy"),
            "validation": metric("val_accuracy"),
            "all training data": metric("train_set_accuracy"),
            "training": metric("train_accuracy"),
        },
    ),
    (
        Curves(
            key="loss",
            title="Loss over rounds",
            caption="Training loss is the mean over the clients' local steps, before their models are merged.",
            y_label="loss",
            bounds=(0, None),
            comparable=True,
        ),
        {
            "test": metric("test_loss"),
            "validation": metric("val_loss"),
            "all training data": metric("train_set_loss"),
            "training": metric("train_loss"),
        },
    ),
    (
        Curves(
            key="shots",
            title="Classes with many, medium and few samples",
            caption="Mean test accuracy of the classes with many, medium and few training samples.",
            y_label="accuracy",
            bounds=(0, 1),
        ),
        {"many": metric("many"), "medium": metric("medium"), "few": metric("few")},
    ),
    (
        Curves(
            key="clients",
            title="Accuracy of the clients",
            caption="Test accuracy over the clients, each of which counts once: the mean of all, and the mean of "
            "the worst tenth.",
            y_label="accuracy",
            bounds=(0, 1),
        ),
        {"mean": metric("client_mean"), "worst decile": metric("client_worst_decile")},
    ),
    (
        Curves(
            key="momentum",
            title="Alpha and the gain of the momentum",
            caption="Alpha is the share of the fresh gradient in a local step. The gain says by how much the "
            "momentum feeds itself: at 1 or more it grows round by round, whatever the data.",
            y_label="alpha, gain",
            mark=1.0,
        ),
        {"alpha": metric("alpha"), "momentum gain": metric("gain")},
    ),
    (
        Curves(
            key="weight-range",
            title="How far apart the weights are",
            caption="The largest, the middle and the smallest weight of each round's clients, over an even share.",
            y_label="weight over an even share",
            mark=1.0,
        ),
        {"largest": _weight(1.0), "median": _weight(0.5), "smallest": _weight(0.0)},
    ),
    (
        Curves(
            key="angles",
            title="Angles between the classifier's rows",
            caption="Mean angle between the rows of the last layer. Under minority collapse those of the rare "
            "classes fall together.",
            y_label="degrees",
        ),
        {"rare classes": metric("minority_angle"), "all classes": metric("classifier_angle")},
    ),
    (
        Curves(
            key="bytes",
            title="Bytes of a round",
            caption="What the server sends and receives in each evaluated round, all clients together.",
            y_label="MB",
            bounds=(0, None),
        ),
        {"to the clients": metric("bytes_down", scale=1e-6), "from the clients": metric("bytes_up", scale=1e-6)},
    ),
    (
        Curves(
            key="seconds",
            title="Seconds",
            caption="Time spent in rounds and evaluations. Pauses between a stop and its resumption do not count.",
            y_label="seconds",
            bounds=(0, None),
        ),
        {"since the start": metric("seconds")},
    ),
)
"""The figures over rounds, still without curves, and the metric that each curve shows."""


def class_scatter(run: Run) -> Scatter | None:
    """Return the accuracy of each class over its share of the training data."""
    accuracies = run.kept.per_class_accuracy if run.kept else None
    if accuracies is None or not any(run.train_counts):
        return None
    tested = {i: accuracy for i, accuracy in enumerate(accuracies) if accuracy is not None}
    series = []
    for shot, members in (shots_of(run) or {"classes": np.arange(len(run.train_counts))}).items():
        classes = [i for i in head_to_tail(run) if i in members and i in tested]
        if classes:
            shares = [class_share(run, i) for i in classes]
            names = [run.classes[i] for i in classes]
            series.append(ScatterSeries(shot, shares, [tested[i] for i in classes], names))
    return Scatter(
        key="classes",
        title="Accuracy per class, from head to tail",
        caption="Each point is a class: frequent ones left, rare ones right. Points that fall to the right mean "
        "that the model neglects the rare classes.",
        series=series,
        x_label="share of the training data (%)",
        y_label="test accuracy of the class",
        bounds=(0, 1),
    )


def concentration(run: Run, limit: int) -> Curves | None:
    """Return neuron concentration and test accuracy on two axes."""
    tested = curve("test accuracy", [run], metric("test_accuracy"), limit)
    measured = curve("neuron concentration", [run], metric("concentration"), limit)
    if measured is None:
        return None
    return Curves(
        key="concentration",
        title="Neuron concentration and accuracy",
        caption="1: every neuron fires for one class only; 0: all fire for all classes alike. The mean over the "
        "layers (right axis) beside the accuracy (left axis).",
        curves=_present(tested, replace(measured, right=True)),
        y_label="accuracy",
        right_label="neuron concentration",
        bounds=(0, 1),
    )


def layer_curves(run: Run, limit: int) -> Curves | None:
    """Return neuron concentration, one curve per layer."""
    figure = Curves(
        key="concentration-layers",
        title="Neuron concentration of each layer",
        caption="Named from the first layer to the last; 1 is a layer whose neurons fire for one class each.",
        y_label="neuron concentration",
    )
    return _fill(figure, run, {name: metric("concentration_layers", name) for name in layers(run)}, limit)


def _fill(figure: Curves, run: Run, fields: Mapping[str, Reader], limit: int) -> Curves | None:
    curves = _present(*[curve(name, [run], read, limit) for name, read in fields.items()])
    return replace(figure, curves=curves) if curves else None


def _present(*curves: Curve | None) -> list[Curve]:
    return [line for line in curves if line is not None]
