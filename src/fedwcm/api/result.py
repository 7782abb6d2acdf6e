"""What `fedwcm.run` and `fedwcm.compare` return: runs and their models, with views for terminals and notebooks."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedwcm.api.arguments import ModelLike
from fedwcm.api.trained import load_model
from fedwcm.config.schema import Config
from fedwcm.experiment.folder import ComparisonFolder, RunFolder, runs_below
from fedwcm.experiment.records import Outcome, RoundRecord, Summary
from fedwcm.experiment.run import Run
from fedwcm.reports.figures import Curve
from fedwcm.reports.load import group_runs
from fedwcm.reports.notebook import (
    csv_frame,
    facts_text,
    figure,
    flat_metric,
    known_metric,
    plot_curves,
    table_html,
)
from fedwcm.reports.series import curves
from fedwcm.reports.table import FIRST, Row, columns_of, rows_of
from fedwcm.reports.table_files import cell_text, csv_table, markdown_table, name_of, swept_columns
from fedwcm.reports.text import dataset_name
from fedwcm.reports.verdicts import comparison_headline

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
    """

    def __init__(self, run: Run, model: ModelLike | None = None, trust: bool = False) -> None:
        self._run, self._model, self._trust = run, model, trust

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
        return {
            "method": f"{self.config.title}, seed {self.config.run.seed}",
            "data": self._data(),
            "rounds": self._rounds(),
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


CURVE_POINTS = 200
SHOWN_COLUMNS = (*FIRST, "few", "medium", "many", "client_mean", "client_worst_decile")
"""Columns of the view in a notebook; `markdown` and `table()` have all."""

SHOWN_ROWS = 3
"""Methods whose accuracy is named in the text view."""


class Comparison:
    """The runs of a comparison by label, the table and what it says.

    Args:
        folder: the comparison's folder.
        runs: those that have begun.
        report: the page; None if there is none.
        model: what takes the trained weights of runs that were given an object.
        trust: import the factory that a run's folder names.
    """

    def __init__(
        self,
        folder: Path,
        runs: Sequence[Run],
        report: Path | None = None,
        model: ModelLike | None = None,
        trust: bool = False,
    ) -> None:
        self.folder, self.report = folder, report
        self.groups = group_runs([run for run in runs if run.folder.metrics_file.exists()] or runs)
        self.rows: list[Row] = rows_of(self.groups)
        self.headline = comparison_headline(self.groups)
        self.runs: dict[str, list[Result]] = {}
        for run in runs:
            self.runs.setdefault(run.label, []).append(Result(run, model, trust))

    @property
    def markdown(self) -> str:
        """The table as Markdown: mean ± standard deviation over the seeds, the best in bold."""
        return markdown_table(self.rows)

    def table(self) -> "pd.DataFrame":
        """Return the table as a pandas DataFrame, as in `table.csv`: `final_accuracy_mean`, `_std`, `_n`, …

        Needs pandas: `pip install 'fedwcm[notebook]'`. Without it, `rows` has the same numbers.
        """
        return csv_frame(csv_table(self.rows))

    def plot(self, metric: str = "test_accuracy", ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the mean of a number over the rounds for each method, with its standard deviation over the seeds.

        Needs matplotlib: `pip install 'fedwcm[notebook]'`.

        Args:
            metric: a column of a run's `history_frame()`.
            ax: the axes to draw on; by default new ones.
            style: options of matplotlib's `plot`.
        """
        known_metric(metric, [record for group in self.groups for run in group.runs for record in run.history])
        return plot_curves(self._curves(metric), metric, ax, **style)

    def to_json(self) -> dict[str, object]:
        """Return the headline, and a row per method and setting with the numbers of the table, for scripts."""
        return {
            "headline": self.headline,
            "rows": [asdict(row) | {"best": sorted(row.best)} for row in self.rows],
            "report": None if self.report is None else str(self.report),
        }

    def __repr__(self) -> str:
        seeds = {str(run.seed) for group in self.groups for run in group.runs}
        runs = sum(len(group.runs) for group in self.groups)
        rounds = max(run.outcome.rounds for group in self.groups for run in group.runs)
        sets = dict.fromkeys(dataset_name(group.settings) for group in self.groups)
        methods = dict.fromkeys(row.method for row in sorted(self.rows, key=lambda row: row.position))
        facts = {
            "compared": f"{', '.join(methods)} on {', '.join(sets)}",
            "runs": f"{_count(runs, 'run')} of {_count(rounds, 'round')} each, {_count(len(seeds), 'seed')}",
            "accuracy": self._accuracies(),
            "verdict": self.headline[0] if self.headline else "none",
            "saved in": str(self.folder),
        }
        return facts_text(facts)

    def _accuracies(self) -> str:
        shown = [
            f"{row.label} {cell_text(next((row.values[key] for key in FIRST if row.values[key]), None))}"
            for row in self.rows[:SHOWN_ROWS]
        ]
        return ", ".join(shown) + (", …" if len(self.rows) > SHOWN_ROWS else "")

    def _repr_html_(self) -> str:
        columns = {key: name for key, name in columns_of(self.rows).items() if key in SHOWN_COLUMNS}
        swept = swept_columns(self.rows)
        cells = [
            [name_of(row), *row.options.values(), *(cell_text(row.values[key]) for key in columns), row.verdict]
            for row in self.rows
        ]
        bold = [
            [False, *(False for _ in swept), *(key in row.best for key in columns), False] for row in self.rows
        ]
        heads = ["method", *swept, *columns.values(), "against the best"]
        drawn = (figure(self._curves(metric), metric) for metric in SHOWN_METRICS)
        return table_html(heads, cells, bold) + next(filter(None, drawn), "")

    def _curves(self, metric: str) -> list[Curve]:
        return curves(self.groups, flat_metric(metric), CURVE_POINTS)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def open_run(folder: str | Path, *, model: ModelLike | None = None, trust: bool = False) -> Result | Comparison:
    """Return a past run or comparison: what `fedwcm.run`, or `fedwcm.compare`, returned.

    A run that is going on, or was stopped, has its history so far. Its model is loaded when it is asked for.

    Args:
        folder: folder of a run or a comparison.
        model: what takes the trained weights, if the run was given an object: see `fedwcm.load_model`.
        trust: import the factory that the folder names as `package.module:factory`.
    """
    path = Path(folder)
    if RunFolder(path).holds_run and RunFolder(path).metrics_file.exists():
        return Result(Run(RunFolder(path)), model, trust)
    comparison = ComparisonFolder(path)
    if comparison.index_file.exists():
        index, page = comparison.index(), comparison.report_file
        runs = [Run(RunFolder(comparison.runs / name), index=index) for name in index.labels]
        begun = [run for run in runs if run.folder.holds_run]
        return Comparison(path, begun, page if page.exists() else None, model, trust)
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder")
    RunFolder(path).refuse_search()
    raise FileNotFoundError(
        f"{path} holds neither a run (config.toml and metrics.jsonl) nor a comparison (comparison.json)"
        f"{runs_below(path)}"
    )
