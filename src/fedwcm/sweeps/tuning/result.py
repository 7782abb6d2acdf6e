"""What `fedwcm.tune` returns: the trials of every method, and the best options, with a view for notebooks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial

from fedwcm.reports.frames import csv_frame
from fedwcm.reports.inline_view import facts_text, table_html
from fedwcm.sweeps.tuning.report import HEADS, best_trial, compare_command, csv_text, result_rows, winner

if TYPE_CHECKING:
    import pandas as pd


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
        return {name: winner(name, found) for name in self.trials if (found := best_trial(self.trials[name]))}

    @property
    def config(self) -> Path:
        """The file with the options that all trials share."""
        return self.folder / "config.toml"

    @property
    def command(self) -> str:
        """The command that runs the winners against each other, with seeds that the search has not seen."""
        return compare_command(self.trials, self.folder, self.seeds)

    def table(self) -> "pd.DataFrame":
        """All trials as a pandas DataFrame, with the columns of `trials.csv`.

        Needs pandas: `pip install 'fedwcm[notebook]'`.
        """
        return csv_frame(csv_text(self.trials))

    def __repr__(self) -> str:
        told = {
            name: f"{trials} trials, {pruned} pruned; best: validation {val}, test {test}, {options}"
            for name, trials, pruned, val, test, options in result_rows(self.trials)
        }
        return facts_text({**told, "saved in": str(self.folder)})

    def _repr_html_(self) -> str:
        rows = result_rows(self.trials)
        return table_html(HEADS, rows, [[False] * len(HEADS) for _ in rows])
