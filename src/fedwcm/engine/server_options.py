"""Options of the server besides aggregation. Nothing here imports torch."""

from dataclasses import dataclass

from fedwcm.core.checks import require


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What the server does besides aggregation.

    Args:
        ema: decay of a moving average of the global model over the rounds, which is then what is evaluated and
            handed over; 0.9 averages about ten rounds, 0 is the last model itself.
    """

    ema: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.ema < 1, "ema", self.ema, "in [0, 1)")
