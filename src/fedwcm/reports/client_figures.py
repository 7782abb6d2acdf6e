"""Accuracy of each client: of the model that all share, and after each has fine-tuned it."""

from collections.abc import Mapping, Sequence

from fedwcm.experiment.run import Run
from fedwcm.reports.figures import Bar, Bars, Number
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.statistics import spread
from fedwcm.reports.text import counted

MOST_CLIENTS, WIDE_FROM = 100, 20
"""Clients up to which each gets a bar, and bars from which their figure is wide."""


def client_bars(groups: Sequence[MethodRuns]) -> Bars | None:
    """Accuracy of each client, mean over the seeds; the worst client first."""
    told = {group.label: _accuracies(group) for group in groups if _accuracies(group)}
    names = dict.fromkeys(name for values in told.values() for name in values)
    if not told or len(names) > MOST_CLIENTS:
        return None
    first = next(iter(told.values()))
    ranked = sorted(names, key=lambda name: spread(first[name]).mean if name in first else 1.0)
    alone = len(groups) == 1 and len(groups[0].runs) == 1
    return Bars(
        key="client-accuracy",
        title="Accuracy of each client",
        caption="Test accuracy of the model that is kept, the worst client first"
        + ("." if len(groups) == 1 else f" by {next(iter(told))}."),
        by_method=not alone,
        categories=ranked,
        bars=[_bar("test accuracy" if alone else label, values, ranked) for label, values in told.items()],
        x_label="client",
        y_label="accuracy",
        bounds=(0, 1),
        wide=len(ranked) * len(told) > WIDE_FROM,
    )


def fine_tuned_bars(run: Run) -> Bars | None:
    """Accuracy of each client before and after it has fine-tuned the model, sorted by the accuracy before."""
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
        f"{counted(record.epochs, 'epoch')}, {layers}, learning rate {record.lr:g}.",
        categories=ranked,
        bars=[Bar("before", [before[n] for n in ranked]), Bar("after", [after[n] for n in ranked])],
        x_label="client",
        y_label="accuracy",
        bounds=(0, 1),
        wide=2 * len(ranked) > WIDE_FROM,
    )


def _accuracies(group: MethodRuns) -> dict[str, list[float]]:
    """The accuracies of each client over the seeds."""
    found: dict[str, list[float]] = {}
    for run in group.runs:
        told: Mapping[str, float] = (run.summary.client_accuracy if run.summary else None) or {}
        for name, value in told.items():
            found.setdefault(name, []).append(value)
    return found


def _bar(label: str, values: Mapping[str, Sequence[float]], names: Sequence[str]) -> Bar:
    spreads = [spread(values[name]) if name in values else None for name in names]
    means: list[Number] = [s.mean if s else None for s in spreads]
    several = any(s is not None and s.runs > 1 for s in spreads)
    return Bar(label, means, [s.std if s else None for s in spreads] if several else None)
