"""Options of a cluster. Nothing here imports Ray or torch."""

from dataclasses import dataclass
from typing import Literal

from fedwcm.core.checks import require

LOCAL = "local"
"""The address of a cluster on this machine that begins and ends with its use."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where and how the `ray` backend runs.

    Args:
        ray_address: address of a Ray cluster; by default the one that `RAY_ADDRESS` names or, if it names none, a
            local one that the command starts and stops.
        worker_gpus: share of a GPU for each worker of the `ray` backend; 0 for a CPU core each.
        spread: what `compare` and `tune` divide among the workers of `ray`: whole `runs`, several at a time, or
            the `clients` of one run after the other; `auto` decides by their number and size.
    """

    ray_address: str | None = None
    worker_gpus: float = 0.0
    spread: Literal["auto", "runs", "clients"] = "auto"

    def __post_init__(self) -> None:
        share = self.worker_gpus
        whole = share > 1 and float(share).is_integer()
        require(0 <= share <= 1 or whole, "worker_gpus", share, "in [0, 1], or a whole number")
