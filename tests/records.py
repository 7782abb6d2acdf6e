"""Records of rounds and summaries for tests: made up, or without their clock."""

from collections.abc import Iterable
from typing import Any

from fedwcm.experiment.records import RoundRecord, Summary


def round_record(number: int, **more: Any) -> RoundRecord:
    """A record with nothing but what is required, and these keys."""
    values = {"round": number, "seconds": 2.0 * number, "participants": 1, "bytes_down": 8, "bytes_up": 8, **more}
    return RoundRecord.from_json(values, f"round {number}")


def summary(**more: Any) -> Summary:
    """A summary of a run without test data, but for these keys."""
    values: dict[str, Any] = {"rounds": 3, "final_accuracy": None, "best_accuracy": None}
    values |= {"name": "fedwcm", "method": "fedwcm", "loss": "cross_entropy", "sampler": "uniform"}
    values |= {"dataset": "digits", "seed": 0, "diverged": None, "seconds_per_round": 2.0}
    values |= {"backend": "sequential", "parameters": 1, "train_counts": [1], "confusion": None, **more}
    return Summary.from_json(values, "summary")


def timeless(history: Iterable[RoundRecord]) -> list[dict[str, object]]:
    """What is on disk, without the seconds."""
    return [{key: value for key, value in record.to_json().items() if "second" not in key} for record in history]
