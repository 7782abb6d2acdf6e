"""Progress of a run in Flower's log."""

import logging
from typing import Any

from fedwcm.runs.progress import Silent
from fedwcm.runs.records import RoundRecord

LOG = logging.getLogger("flwr.fedwcm")


class LogProgress(Silent):
    """Logs one line per round."""

    def start(self, title: str, rounds: int, done: int) -> None:
        self._rounds = rounds
        LOG.info("%s: %s", title, f"resuming after round {done}" if done else f"{rounds} rounds")

    def round(self, number: int, record: RoundRecord) -> None:
        clients: Any = record.extra.get("clients_accuracy")
        numbers = {
            "accuracy": record.test_accuracy,
            "accuracy on clients": clients,
            "training loss": record.train_loss,
        }
        shown = [f"{name} {value:.4f}" for name, value in numbers.items() if value is not None]
        LOG.info("round %d of %d: %s", number, self._rounds, ", ".join([f"{record.participants} clients", *shown]))
