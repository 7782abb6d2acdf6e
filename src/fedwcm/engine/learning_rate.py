"""The local learning rate as a function of the round."""

from dataclasses import dataclass
from math import cos, inf, pi
from typing import Literal

from fedwcm.core.checks import require, require_choices
from fedwcm.utils.field_types import Flagged


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """A learning rate and its schedule over the rounds. Without state: a resumed run goes on exactly.

    Args:
        lr: learning rate, the highest one of the schedule.
        schedule: `constant`; `exponential` (times `lr_decay` after every round); `step` (times `lr_decay` after
            every `lr_decay_every` rounds); `cosine` (from `lr` down to `lr_end` after the last round).
        lr_decay: factor of `exponential` and `step`, in (0, 1].
        lr_decay_every: rounds between two factors of `step`.
        lr_end: learning rate at which `cosine` ends; by default 0.
        warmup: rounds before the schedule starts, in which the learning rate rises linearly to `lr`.
    """

    lr: Flagged[float] = 0.1
    schedule: Literal["constant", "exponential", "step", "cosine"] = "constant"
    lr_decay: float | None = None
    lr_decay_every: int | None = None
    lr_end: float | None = None
    warmup: int = 0

    def __post_init__(self) -> None:
        require_choices(self)
        require(0 < self.lr < inf, "lr", self.lr, "positive and finite")
        for field, schedules in PARAMETERS.items():
            self._require_for(field, schedules)
        for field in ("lr_decay", "lr_decay_every"):
            needed = self.schedule in PARAMETERS[field] and getattr(self, field) is None
            require(not needed, "schedule", self.schedule, f"given together with {field}")
        require(self.lr_decay is None or 0 < self.lr_decay <= 1, "lr_decay", self.lr_decay, "in (0, 1]")
        every = self.lr_decay_every
        require(every is None or every >= 1, "lr_decay_every", every, "at least 1")
        end = self.lr_end
        require(end is None or 0 <= end <= self.lr, "lr_end", end, f"between 0 and lr = {self.lr}")
        require(self.warmup >= 0, "warmup", self.warmup, "a number of rounds from 0")

    def at(self, r: int, rounds: int) -> float:
        """Return the learning rate of round r, counted from 0, of a run of this many rounds. It is never 0."""
        if r < self.warmup:
            return self.lr * (r + 1) / (self.warmup + 1)
        r, rounds = r - self.warmup, rounds - self.warmup
        if self.schedule == "cosine":
            end = self.lr_end or 0.0
            return end + (self.lr - end) * (1 + cos(pi * r / rounds)) / 2
        if self.lr_decay is None:
            return self.lr
        return self.lr * self.lr_decay ** (r // (self.lr_decay_every or 1))

    def _require_for(self, field: str, schedules: tuple[str, ...]) -> None:
        value = getattr(self, field)
        allowed = f"none with schedule = {self.schedule!r}: it belongs to {' and '.join(schedules)}"
        require(value is None or self.schedule in schedules, field, value, allowed)


PARAMETERS = {
    "lr_decay": ("exponential", "step"),
    "lr_decay_every": ("step",),
    "lr_end": ("cosine",),
}
"""Which schedules have which parameter."""
