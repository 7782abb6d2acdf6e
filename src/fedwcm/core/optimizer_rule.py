"""Which optimizers the clients of a method may use."""

from dataclasses import dataclass
from typing import Literal

from fedwcm.core.checks import require


@dataclass(frozen=True)
class OptimizerRule:
    """What a method permits as the clients' optimizer, and why nothing else.

    Args:
        permits: `any` optimizer; SGD with or without `momentum`, whose increment is a sum of the directions with
            known weights; or `plain` SGD.
        because: the reason, for the error message.
    """

    permits: Literal["any", "momentum", "plain"]
    because: str = ""

    def check(self, method: str, optimizer: str, momentum: float) -> None:
        """Raise a ValueError that names option, method and reason if the optimizer is not permitted."""
        why = f"with the method {method}: {self.because}"
        require(self.permits == "any" or optimizer == "sgd", "local.optimizer", optimizer, f"sgd {why}")
        require(self.permits != "plain" or not momentum, "local.momentum", momentum, f"0 {why}")


ANY_OPTIMIZER = OptimizerRule("any")
