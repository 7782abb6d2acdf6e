"""Which round's model is kept, and when a run stops early: both are decided on the validation data."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedwcm.config.schema import RunOptions
from fedwcm.core.types import Vec
from fedwcm.experiment.records import VALIDATION_METRICS, RoundRecord, selected_record


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """The parameters and buffers that a round was evaluated with."""

    round: int
    x: Vec
    buffers: Vec

    def copy(self) -> "EvaluatedModel":
        return EvaluatedModel(self.round, self.x.clone(), self.buffers.clone())


def out_of_patience(history: Sequence[RoundRecord], options: RunOptions) -> str | None:
    """Why the run stops after the last of these rounds; None if it goes on.

    Only the history decides, so that a resumed run stops where it would have stopped.
    """
    best = selected_record(history, options.select_by) if options.patience else None
    if best is None:
        return None
    key = VALIDATION_METRICS[options.select_by]
    since = sum(record.number(key) is not None for record in history if record.round > best.round)
    if since < options.patience:
        return None
    metric = options.select_by.replace("_", " ")
    return (
        f"after round {history[-1].round} of {options.rounds}: no better validation {metric} than that of round "
        f"{best.round} in {since} evaluations"
    )
