"""What a search has found: `trials.csv`, `tuning.md`, `report.html`, and what `fedwcm.tune` returns."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from fedwcm.experiment.files import replace_file
from fedwcm.experiment.records import VALIDATION_METRICS
from fedwcm.reports.content import ReportContent
from fedwcm.reports.figures import Curve, Curves
from fedwcm.reports.notebook import csv_frame, facts_text, table_html
from fedwcm.reports.page import page
from fedwcm.reports.styles import fixed_styles
from fedwcm.reports.sweep import spans_decades
from fedwcm.utils.text import csv_cells

if TYPE_CHECKING:
    import pandas as pd


HEADS = ("method", "trials", "pruned", "validation", "test", "best options")


def write_report(out: Path, trials: Mapping[str, Sequence[FrozenTrial]], seeds: Sequence[int]) -> None:
    """Write the files; a running search has the trials that have ended so far."""
    lines = _lines(trials, out, seeds)
    replace_file(out / "trials.csv", csv_text(trials))
    replace_file(out / "tuning.md", "\n".join(lines) + "\n")
    replace_file(out / "report.html", page(_content(trials, lines)))


def _content(trials: Mapping[str, Sequence[FrozenTrial]], lines: Sequence[str]) -> ReportContent:
    """Return a page with the best of each method, and figures of how the search went and what the options do."""
    styles = fixed_styles(list(trials))
    keys = dict.fromkeys(key for ended in trials.values() for trial in ended for key in trial.params)
    figures = [_progress(trials, styles), *(_effect(key, trials, styles) for key in keys)]
    return ReportContent(
        title="Tuning",
        headline=[lines[2]],
        facts=[],
        warnings=[],
        notes=[],
        tiles=[
            (name, value, f"{options}; {count} trials, {pruned} pruned; test {test}")
            for name, count, pruned, value, test, options in result_rows(trials)
        ],
        methods=list(trials),
        best=list(trials),
        styles=styles,
        costs={},
        table=None,
        figures=[figure for figure in figures if figure.curves],
        options={},
        differences={},
        commands=[(text, lines[i + 2].strip()) for i, text in enumerate(lines) if text[:3] == "To "],
    )


def _progress(trials: Mapping[str, Sequence[FrozenTrial]], styles: Mapping[str, int]) -> Curves:
    curves = []
    for name, ended in trials.items():
        known = sorted((trial.number, value) for trial in ended if (value := _value(trial, trials)) is not None)
        best = np.maximum.accumulate([value for _, value in known]).tolist()
        if known:
            curves.append(Curve(name, [float(number + 1) for number, _ in known], best, style=styles[name]))
    caption = "The best validation metric so far, over the trials."
    return Curves(
        key="progress",
        title="How the search went",
        caption=caption,
        curves=curves,
        wide=True,
        y_label="validation",
        x_label="trial",
    )


def _effect(key: str, trials: Mapping[str, Sequence[FrozenTrial]], styles: Mapping[str, int]) -> Curves:
    """Return the best validation metric at each value of a numeric option."""
    curves = []
    for name, ended in trials.items():
        best: dict[float, float] = {}
        for trial in ended:
            option, value = trial.params.get(key), _value(trial, trials)
            if value is not None and isinstance(option, int | float):
                best[float(option)] = max(value, best.get(float(option), value))
        if best:
            curves.append(Curve(name, sorted(best), [best[option] for option in sorted(best)], style=styles[name]))
    caption = "The best validation metric at each value that was tried."
    return Curves(
        key=key.replace(".", "-"),
        title=f"Over {key}",
        caption=caption,
        curves=curves,
        y_label="validation",
        x_label=key,
        log_x=spans_decades([x for curve in curves for x in curve.x]),
    )


def _value(trial: FrozenTrial, trials: Mapping[str, Sequence[FrozenTrial]]) -> float | None:
    values = trial.user_attrs.get(_metric_names(trials)[0])
    return float(np.mean(values)) if values and not _has_diverged(trial) else None


def winner(name: str, trial: FrozenTrial) -> str:
    """Return the method with the options of a trial in its brackets, as `--method` takes it."""
    base, _, inside = name.partition("[")
    fixed = [inside.removesuffix("]")] if inside else []
    chosen = [f"{key.removeprefix('method.')}={_toml(value)}" for key, value in trial.params.items()]
    return f"{base}[{', '.join([*fixed, *chosen])}]"


def compare_command(trials: Mapping[str, Sequence[FrozenTrial]], out: Path, seeds: Sequence[int]) -> str:
    """Return the command that compares the winners, with as many seeds that the search has not seen."""
    best = [winner(name, trial) for name, ended in trials.items() if (trial := best_trial(ended))]
    if not best:
        raise ValueError(f"{out} has no winners: no trial of any method came to its end without diverging")
    listed = ",".join(str(seed) for seed in unseen(seeds))
    return (
        f"fedwcm compare --config {out}/config.toml --methods '{','.join(best)}' --seeds {listed} --out {out}/best"
    )


def unseen(seeds: Sequence[int]) -> list[int]:
    """Return the same number of seeds, none of them among these."""
    return [max(seeds) + 1 + i for i in range(len(seeds))]


def _lines(trials: Mapping[str, Sequence[FrozenTrial]], out: Path, seeds: Sequence[int]) -> list[str]:
    chosen = _metric_names(trials)[0].replace("val_", "validation_").replace("_", " ")
    over = f"{'the seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"
    lines = [
        "# Tuning",
        "",
        f"Chosen by the mean {chosen} over {over}.",
        "",
    ]
    lines += [_markdown(HEADS), "|" + "---|" * len(HEADS), *map(_markdown, result_rows(trials))]
    if any(best_trial(ended) for ended in trials.values()):
        fresh = "To run the winners against each other, with seeds that the search has not seen:"
        lines += ["", fresh, "", f"    {compare_command(trials, out, seeds)}"]
        for name, ended in trials.items():
            if best := best_trial(ended):
                method = f"--method '{winner(name, best)}' --seed {unseen(seeds)[0]}"
                lines += ["", f"To run {name} alone:", "", f"    fedwcm run --config {out}/config.toml {method}"]
    return lines


def result_rows(trials: Mapping[str, Sequence[FrozenTrial]]) -> list[list[str]]:
    """Return for each method how many trials it had, and the accuracy and options of the best, under `HEADS`."""
    rows = []
    for name, ended in trials.items():
        pruned = sum(trial.state == TrialState.PRUNED for trial in ended)
        best = best_trial(ended)
        numbers = [_mean(best, key) if best else "–" for key in _metric_names(trials)]
        rows.append([name, str(len(ended)), str(pruned), *numbers, _options(best, ended)])
    return rows


def _options(best: FrozenTrial | None, ended: Sequence[FrozenTrial]) -> str:
    """Return the options of the best trial; without one, why there is none."""
    if best is not None:
        return ", ".join(f"{key}={_brief(value)}" for key, value in best.params.items())
    return "none: all trials diverged" if ended and all(map(_has_diverged, ended)) else "–"


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Return the first of the ranked trials that was completed and did not diverge."""
    return next(
        (trial for trial in trials if trial.state == TrialState.COMPLETE and not _has_diverged(trial)), None
    )


def _metric_names(trials: Mapping[str, Sequence[FrozenTrial]]) -> tuple[str, str]:
    """Return the metric that the trials were chosen by, and the one that is reported beside it."""
    keys = {key for ended in trials.values() for trial in ended for key in trial.user_attrs}
    balanced = VALIDATION_METRICS["balanced_accuracy"]
    return balanced if balanced in keys else VALIDATION_METRICS["accuracy"], "test_accuracy"


def _has_diverged(trial: FrozenTrial) -> bool:
    return bool(trial.user_attrs.get("diverged"))


def _mean(trial: FrozenTrial, key: str) -> str:
    values = trial.user_attrs.get(key, [])
    return f"{np.mean(values):.4f}" if values else "–"


def csv_text(trials: Mapping[str, Sequence[FrozenTrial]]) -> str:
    """Return every trial, with the means over its seeds; an option that a method does not have is empty."""
    keys = list(dict.fromkeys(key for ended in trials.values() for trial in ended for key in trial.params))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    metrics = _metric_names(trials)
    writer.writerow(["method", "trial", "state", *metrics, *keys])
    for name, ended in trials.items():
        for trial in ended:
            state = "diverged" if _has_diverged(trial) else trial.state.name.lower()
            measured = [np.mean(values) if (values := trial.user_attrs.get(key)) else "" for key in metrics]
            options = (trial.params.get(key, "") for key in keys)
            writer.writerow(csv_cells([name, trial.number + 1, state, *measured, *options]))
    return text.getvalue()


def _brief(value: object) -> str:
    """Return a value as a table shows it; the commands have all its digits."""
    return f"{value:.4g}" if isinstance(value, float) else _toml(value)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
        return {name: winner(name, trial) for name in self.trials if (trial := best_trial(self.trials[name]))}

    @property
    def config(self) -> Path:
        """The file with the options that all trials share."""
        return self.folder / "config.toml"

    @property
    def command(self) -> str:
        """The command that runs the winners against each other, with seeds that the search has not seen."""
        return compare_command(self.trials, self.folder, self.seeds)

    def table(self) -> "pd.DataFrame":
        """Return all trials as a pandas DataFrame, with the columns of `trials.csv`.

        Needs pandas: `pip install 'fedwcm[notebook]'`.
        """
        return csv_frame(csv_text(self.trials))

    def __repr__(self) -> str:
        lines = {
            name: f"{trials} trials, {pruned} pruned; best: validation {val}, test {test}, {options}"
            for name, trials, pruned, val, test, options in result_rows(self.trials)
        }
        return facts_text({**lines, "saved in": str(self.folder)})

    def _repr_html_(self) -> str:
        rows = result_rows(self.trials)
        return table_html(HEADS, rows, [[False] * len(HEADS) for _ in rows])
