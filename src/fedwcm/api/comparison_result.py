"""What `fedwcm.compare` returns, and `fedwcm.open_run`, which brings it, or a run, back from its folder.

Apart from `result`, which a run needs: this imports the reports, and with them scipy.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwcm.api.arguments import Folder, ModelLike
from fedwcm.api.result import SHOWN_METRICS, Result
from fedwcm.experiment.folder import ComparisonFolder, RunFolder, runs_below
from fedwcm.experiment.run import Run
from fedwcm.reports import notebook
from fedwcm.reports.figures import Curve
from fedwcm.reports.load import group_runs
from fedwcm.reports.series import curves
from fedwcm.reports.table import FIRST, Row, columns_of, rows_of
from fedwcm.reports.table_files import cell_text, csv_table, markdown_table, name_of, swept_columns
from fedwcm.reports.text import dataset_name
from fedwcm.reports.verdicts import comparison_headline

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


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
        return notebook.csv_frame(csv_table(self.rows))

    def plot(self, metric: str = "test_accuracy", ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the mean of a number over the rounds for each method, with its standard deviation over the seeds.

        Needs matplotlib: `pip install 'fedwcm[notebook]'`.

        Args:
            metric: a column of a run's `history_frame()`.
            ax: the axes to draw on; by default new ones.
            style: options of matplotlib's `plot`.
        """
        notebook.known_metric(
            metric, [record for group in self.groups for run in group.runs for record in run.history]
        )
        return notebook.plot_curves(self._curves(metric), metric, ax, **style)

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
            "verdict": self.headline[0].replace("\n", " ") if self.headline else "none",
            "saved in": str(self.folder),
        }
        return notebook.facts_text(facts)

    def _accuracies(self) -> str:
        shown = [f"{row.label} {cell_text(row.values[row.ranked_by])}" for row in self.rows[:SHOWN_ROWS]]
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
        drawn = (notebook.figure(self._curves(metric), metric) for metric in SHOWN_METRICS)
        return notebook.table_html(heads, cells, bold) + next(filter(None, drawn), "")

    def _curves(self, metric: str) -> list[Curve]:
        return curves(self.groups, notebook.flat_metric(metric), CURVE_POINTS)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def open_run(folder: Folder, *, model: ModelLike | None = None, trust: bool = False) -> Result | Comparison:
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
