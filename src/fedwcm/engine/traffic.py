"""What a round sends and gets back."""

from collections.abc import Mapping

from fedwcm.core.types import LeftOut, bytes_of
from fedwcm.engine.client import Broadcast
from fedwcm.engine.cohort_updates import CohortUpdates


class Traffic:
    """The bytes that a round sends and gets back, and the clients that it goes on without."""

    def __init__(self, sampled: int) -> None:
        self._sampled, self._down, self._up = sampled, 0, 0
        self._left_out: dict[int, LeftOut] = {}

    def sent(self, sent: Broadcast) -> None:
        """Count what every sampled client is sent."""
        self._down += self._sampled * (bytes_of({"x": sent.x, "buffers": sent.buffers}) + bytes_of(sent.message))

    def answered(self, result: CohortUpdates) -> None:
        """Count the reports of those that answered; a number takes 8 bytes."""
        self._up += 8 * len(result.ids) * len(result.report)
        self._left_out |= result.left_out

    def uploaded(self, size: int, lost: Mapping[int, LeftOut]) -> None:
        """Count the bytes that their sums took, and note the clients whose uploads were lost."""
        self._up += size
        self._left_out |= lost

    def record(self) -> dict[str, object]:
        left_out = {"left_out": {str(client): str(why) for client, why in self._left_out.items()}}
        return {"bytes_down": self._down, "bytes_up": self._up, **(left_out if self._left_out else {})}
