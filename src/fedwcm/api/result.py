"""What `fedwcm.run` returns: a run and its model, with views for terminals and notebooks."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedwcm.api.arguments import ModelLike
from fedwcm.api.trained import load_model
from fedwcm.config.schema import Config
from fedwcm.experiment.records import Outcome, RoundRecord, Summary
from fedwcm.experiment.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from fedwcm.reports.figures import Curve


SHOWN_METRICS = ("test_accuracy", "train_accuracy")
"""The curve of a view: the first of these that was measured."""


class Result:
    """A run: what was run, how it went, and the trained model.

    Args:
        run: the run, in memory or in a folder.
        model: what takes the trained weights, if they are to be loaded: see `fedwcm.load_model`.
        trust: import the factory that the folder names.
        why: the reason for the method, if `auto` chose it.
    """

    def __init__(
        self, run: Run, model: ModelLike | None = None, trust: bool = False, why: str | None = None
    ) -> None:
        self._run, self._model, self._trust, self._why = run, model, trust, why

    @property
    def config(self) -> Config:
        """All options of the run."""
        return self._run.config

    @property
    def history(self) -> list[RoundRecord]:
        """A record per evaluated round."""
        return self._run.history

    @property
    def folder(self) -> Path | None:
        """Where the run is saved; None if nowhere."""
        return None if self._run.in_memory else self._run.path

    def __fspath__(self) -> str:
        """Return the folder as text: a result is taken wherever a run's folder is."""
        if self.folder is None:
            raise ValueError("this run is saved nowhere: give fedwcm.run a folder, out=…")
        return str(self.folder)

    @property
    def finished(self) -> bool:
        """Whether the run has ended, at its last round or before; a stopped one can be resumed."""
        return self._run.finished

    @property
    def summary(self) -> Summary:
        """How the run ended: `summary.final_accuracy`, `summary.few`, …"""
        if self._run.summary is None:
            raise ValueError(
                f"{self.folder} is not a finished run: outcome has its numbers so far. To go on with it: "
                f"fedwcm.run(out={str(self.folder)!r}, resume=True)"
            )
        return self._run.summary

    @property
    def outcome(self) -> Outcome:
        """The headline numbers; of a run that is not finished, those so far."""
        return self._run.outcome

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, in evaluation mode."""
        return self._run.module or load_model(self._run.path, model=self._model, trust=self._trust)

    def history_frame(self) -> "pd.DataFrame":
        """Return the history as a pandas DataFrame: a row per evaluated round, a column per number.

        Numbers of classes are named `per_class_accuracy/3`. Needs pandas: `pip install 'fedwcm[notebook]'`.
        """
        from fedwcm.reports.notebook import history_frame  # here and below: a run needs no report

        return history_frame(self.history)

    def plot(self, metric: str = "test_accuracy", ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw a number over the rounds, and return the axes.

        Needs matplotlib: `pip install 'fedwcm[notebook]'`.

        Args:
            metric: a column of `history_frame()`.
            ax: the axes to draw on; by default new ones.
            style: options of matplotlib's `plot`.
        """
        from fedwcm.reports.notebook import known_metric, plot_curves

        known_metric(metric, self.history)
        return plot_curves([self.curve(metric)], metric, ax, **style)

    def curve(self, metric: str) -> "Curve":
        """Return a number over the rounds, under the run's name."""
        from fedwcm.reports.notebook import history_curve

        return history_curve(self.config.title, self.history, metric)

    def __repr__(self) -> str:
        from fedwcm.reports.notebook import facts_text

        return facts_text(self._facts())

    def _repr_html_(self) -> str:
        from fedwcm.reports.notebook import facts_html, figure

        for metric in SHOWN_METRICS:
            curve = self.curve(metric)
            if curve.x:
                return facts_html(self._facts()) + figure([curve], metric)
        return facts_html(self._facts())

    def _facts(self) -> dict[str, str]:
        summary, balanced = self._run.summary, self.outcome.balanced_accuracy
        unbalanced = summary is not None and summary.has_unbalanced_test_set
        return {
            "method": f"{self.config.title}, seed {self.config.run.seed}",
            **({"why": self._why} if self._why else {}),
            "data": self._data(),
            "rounds": self._rounds(),
            **({"balanced accuracy": f"{balanced:.3f}"} if unbalanced and balanced is not None else {}),
            "accuracy": _accuracy(self.outcome),
            "saved in": str(self.folder or "memory only"),
        }

    def _data(self) -> str:
        partition = self.config.partition
        division = ", ".join([partition.name, *(f"{key} {value}" for key, value in partition.options.items())])
        counts = self._run.summary.train_counts if self._run.summary else ()
        size = f": {sum(counts):,} training samples of {len(counts)} classes" if counts else ""
        return f"{self.config.data.title}{size}; division: {division}"

    def _rounds(self) -> str:
        done, planned = self.outcome.rounds, self.config.run.rounds
        if (summary := self._run.summary) is None:
            return f"{done} of {planned}, not finished"
        if summary.diverged:
            return f"{done} of {planned}, diverged: {summary.diverged}"
        return f"{done} of {planned}, stopped {summary.stopped}" if summary.stopped else str(done)


def _accuracy(outcome: Outcome) -> str:
    if outcome.final_accuracy is None:
        return "not measured"
    texts = [f"{outcome.final_accuracy:.3f} after the last round", f"best {outcome.best_accuracy:.3f}"]
    if outcome.selected_accuracy is not None:
        texts.insert(0, f"{outcome.selected_accuracy:.3f} of the selected round {outcome.selected_round}")
    groups = {"many": outcome.many, "medium": outcome.medium, "few": outcome.few}
    shots = [f"{name} {value:.3f}" for name, value in groups.items() if value is not None]
    return ", ".join(texts) + (f"; {', '.join(shots)}" if shots else "")
