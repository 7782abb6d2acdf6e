"""Options of the fine-tuning of a trained model at each client."""

from dataclasses import dataclass
from typing import Literal

from fedwcm.config.component_text import parse_assignment, split_list
from fedwcm.config.options import make
from fedwcm.core.checks import require


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """How a client fine-tunes the model.

    Args:
        epochs: passes over the client's training samples.
        layers: `all`, or `head`: the final linear layer alone.
        lr: learning rate; by default the run's, `local.lr`.
    """

    epochs: int = 1
    layers: Literal["all", "head"] = "all"
    lr: float | None = None

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        require(self.lr is None or self.lr > 0, "lr", self.lr, "positive")

    @classmethod
    def parse(cls, text: str) -> "FineTuning":
        """Parse `epochs=1,layers=head`."""
        return make(cls, dict(parse_assignment(item) for item in split_list(text)), "personalize")
