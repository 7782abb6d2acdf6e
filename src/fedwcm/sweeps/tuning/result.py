"""What a search has found: `trials.csv`, `tuning.md`, `report.html`, and what `fedwcm.tune` returns."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from fedwcm.config.schema import SelectBy
from fedwcm.experiment.files import replace_file
from fedwcm.experiment.records import VALIDATION_METRICS
from fedwcm.reports.content import ReportContent
from fedwcm.reports.figures import Curve, Curves
from fedwcm.reports.notebook import csv_frame, facts_text, table_html
from fedwcm.reports.page import page
from fedwcm.reports.styles import fixed_styles
from fedwcm.reports.sweep import spans_decades
from fedwcm.sweeps.tuning.trial import TEST_METRICS
from fedwcm.utils.text import csv_cells

if TYPE_CHECKING:
    import pandas as pd


HEADS = ("method", "trials", "pruned", "validation", "test", "best options")


@dataclass(frozen=True, eq=False, repr=False)
class Tuning:
    """A search for options: the trials of each method that have ended, the best first.

    Args:
        folder: of the search.
        seeds: of the runs of each trial.
        trials: by method, as it was typed.
    """

    folder: Path
    seeds: Sequence[int]
    trials: dict[str, list[FrozenTrial]]

    @property
    def best(self) -> dict[str, str]:
        """Each method with its best options in brackets, as `fedwcm.run` and `fedwcm.compare` take it.

        Pass `config=tuning.config` beside it: that has all other options. Methods without
        a completed trial are missing.
        """
        return {name: winner(name, trial) for name, trials in self.trials.items() if (trial := best_trial(trials))}

    @property
    def config(self) -> Path:
        """The file with the options that all trials share."""
        return self.folder / "config.toml"

    @property
    def command(self) -> str:
        """The command that runs the winners against each other, with seeds that the search has not seen."""
        if not self.best:
            raise ValueError(
                f"{self.folder} has no winners: no trial of any method came to its end without diverging"
            )
        methods, seeds = ",".join(self.best.values()), ",".join(map(str, self._unseen_seeds))
        out = self.folder / "best"
        return f"fedwcm compare --config {self.config} --methods '{methods}' --seeds {seeds} --out {out}"

    @property
    def _unseen_seeds(self) -> list[int]:
        return [max(self.seeds) + 1 + i for i in range(len(self.seeds))]

    def table(self) -> "pd.DataFrame":
        """Return all trials as a pandas DataFrame, with the columns of `trials.csv`.

        Needs pandas: `pip install 'fedwcm[notebook]'`.
        """
        return csv_frame(self._csv())

    def __repr__(self) -> str:
        lines = {
            name: f"{trials} trials, {pruned} pruned; best: validation {val}, test {test}, {options}"
            for name, trials, pruned, val, test, options in self._rows
        }
        return facts_text({**lines, "saved in": str(self.folder)})

    def _repr_html_(self) -> str:
        return table_html(HEADS, self._rows, [[False] * len(HEADS) for _ in self._rows])

    def write(self) -> None:
        """Write the files; a running search has the trials that have ended so far."""
        replace_file(self.folder / "trials.csv", self._csv())
        replace_file(self.folder / "tuning.md", "\n".join(self._lines()) + "\n")
        replace_file(self.folder / "report.html", page(self._content()))

    @cached_property
    def _rows(self) -> list[list[str]]:
        """For each method how many trials it had, and the accuracy and options of the best, under `HEADS`."""
        rows = []
        for name, trials in self.trials.items():
            pruned = sum(trial.state == TrialState.PRUNED for trial in trials)
            best = best_trial(trials)
            means = [_mean(best, key) if best else None for key in self._metrics]
            numbers = ["–" if mean is None else f"{mean:.4f}" for mean in means]
            rows.append([name, str(len(trials)), str(pruned), *numbers, _options(best, trials)])
        return rows

    @cached_property
    def _metrics(self) -> tuple[str, str]:
        """The metric that the trials were chosen by, and the same on the test data."""
        keys = {key for trials in self.trials.values() for trial in trials for key in trial.user_attrs}
        chosen: SelectBy = "balanced_accuracy" if VALIDATION_METRICS["balanced_accuracy"] in keys else "accuracy"
        return VALIDATION_METRICS[chosen], TEST_METRICS[chosen]

    @property
    def _keys(self) -> list[str]:
        """The options that were searched."""
        return list(
            dict.fromkeys(key for trials in self.trials.values() for trial in trials for key in trial.params)
        )

    def _csv(self) -> str:
        """Return every trial, with the means over its seeds; an option that a method does not have is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["method", "trial", "state", *self._metrics, *self._keys])
        for name, trials in self.trials.items():
            for trial in trials:
                state = "diverged" if _has_diverged(trial) else trial.state.name.lower()
                means = ("" if (mean := _mean(trial, key)) is None else mean for key in self._metrics)
                options = (trial.params.get(key, "") for key in self._keys)
                writer.writerow(csv_cells([name, trial.number + 1, state, *means, *options]))
        return text.getvalue()

    def _headline(self) -> str:
        chosen = self._metrics[0].replace("val_", "validation_").replace("_", " ")
        over = f"{'the seeds' if len(self.seeds) > 1 else 'seed'} {', '.join(map(str, self.seeds))}"
        return f"Chosen by the mean {chosen} over {over}; test is the same metric."

    def _commands(self) -> list[tuple[str, str]]:
        """Return what to run next: what for, and the command."""
        if not self.best:
            return []
        run = f"fedwcm run --config {self.config} --method"
        return [
            ("To run the winners against each other, with seeds that the search has not seen:", self.command),
            *(
                (f"To run {name} alone:", f"{run} '{method}' --seed {self._unseen_seeds[0]}")
                for name, method in self.best.items()
            ),
        ]

    def _lines(self) -> list[str]:
        lines = ["# Tuning", "", self._headline(), ""]
        lines += [_markdown(HEADS), "|" + "---|" * len(HEADS), *map(_markdown, self._rows)]
        for purpose, command in self._commands():
            lines += ["", purpose, "", f"    {command}"]
        return lines

    def _content(self) -> ReportContent:
        """Return a page with the best of each method, and figures of how the search went and what options do."""
        figures = [self._progress(), *map(self._effect, self._keys)]
        return ReportContent(
            title="Tuning",
            headline=[self._headline()],
            facts=[],
            warnings=[],
            notes=[],
            tiles=[
                (name, value, f"{options}; {count} trials, {pruned} pruned; test {test}")
                for name, count, pruned, value, test, options in self._rows
            ],
            methods=list(self.trials),
            best=list(self.trials),
            styles=self._styles,
            costs={},
            table=None,
            figures=[figure for figure in figures if figure.curves],
            options={},
            differences={},
            commands=self._commands(),
        )

    @property
    def _styles(self) -> dict[str, int]:
        return fixed_styles(list(self.trials))

    def _values(self, name: str) -> list[tuple[FrozenTrial, float]]:
        """Return the trials of a method that were measured, and their validation metrics."""
        chosen, _ = self._metrics
        pairs = [(trial, _mean(trial, chosen)) for trial in self.trials[name] if not _has_diverged(trial)]
        return [(trial, value) for trial, value in pairs if value is not None]

    def _progress(self) -> Curves:
        curves = []
        for name in self.trials:
            values = sorted((trial.number, value) for trial, value in self._values(name))
            best = np.maximum.accumulate([value for _, value in values]).tolist()
            if values:
                curves.append(Curve(name, [float(i + 1) for i, _ in values], best, style=self._styles[name]))
        return Curves(
            key="progress",
            title="How the search went",
            caption="The best validation metric so far, over the trials.",
            curves=curves,
            wide=True,
            y_label="validation",
            x_label="trial",
        )

    def _effect(self, key: str) -> Curves:
        """Return the best validation metric at each value of a numeric option."""
        curves = []
        for name in self.trials:
            best: dict[float, float] = {}
            for trial, value in self._values(name):
                if isinstance(option := trial.params.get(key), int | float):
                    best[float(option)] = max(value, best.get(float(option), value))
            if best:
                points = sorted(best.items())
                curves.append(
                    Curve(name, [x for x, _ in points], [y for _, y in points], style=self._styles[name])
                )
        return Curves(
            key=key.replace(".", "-"),
            title=f"Over {key}",
            caption="The best validation metric at each value that was tried.",
            curves=curves,
            y_label="validation",
            x_label=key,
            log_x=spans_decades([x for curve in curves for x in curve.x]),
        )


def winner(name: str, trial: FrozenTrial) -> str:
    """Return the method with the options of a trial in its brackets, as `--method` takes it."""
    base, _, inside = name.partition("[")
    fixed = [inside.removesuffix("]")] if inside else []
    chosen = [f"{key.removeprefix('method.')}={_toml(value)}" for key, value in trial.params.items()]
    return f"{base}[{', '.join([*fixed, *chosen])}]"


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Return the first of the ranked trials that was completed and did not diverge."""
    return next(
        (trial for trial in trials if trial.state == TrialState.COMPLETE and not _has_diverged(trial)), None
    )


def _options(best: FrozenTrial | None, trials: Sequence[FrozenTrial]) -> str:
    """Return the options of the best trial; without one, why there is none."""
    if best is None:
        return "none: all trials diverged" if trials and all(map(_has_diverged, trials)) else "–"
    texts = {
        key: f"{value:.4g}" if isinstance(value, float) else _toml(value) for key, value in best.params.items()
    }
    return ", ".join(f"{key}={text}" for key, text in texts.items())  # the commands have all digits


def _has_diverged(trial: FrozenTrial) -> bool:
    return bool(trial.user_attrs.get("diverged"))


def _mean(trial: FrozenTrial, key: str) -> float | None:
    """Return the mean of a metric over the seeds of a trial; None if it was not measured."""
    values = trial.user_attrs.get(key)
    return float(np.mean(values)) if values else None


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
