"""The privacy options. Nothing here imports torch or TenSEAL."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedwcm.core.checks import require, require_choices
from fedwcm.privacy.client import MIN_CONTRIBUTORS
from fedwcm.privacy.encoding import MAX_CONTRIBUTORS
from fedwcm.privacy.noise import MIN_EPSILON
from fedwcm.utils.field_types import Flag


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions:
    """What clients reveal of their class counts.

    Args:
        mode: `none`, or `he`: gather the class distribution under homomorphic encryption; `none` shows the server
            each client's counts, `he` only their sum, and what is computed from them (FedWCM's score, the distance
            from the target) in levels.
        key_holders: number of keys among which the clients are divided; only for `he`.
        min_contributors: smallest number of clients whose sum is decrypted; only for `he`.
        score_levels: number of values that a client's score, and its distance from the target, can take; 0 for the
            exact ones; only for `he`.
        epsilon: the counts get noise before they are used: a sample more or less has ε-differential privacy, a
            sample that changes its class 2ε; `none` for no noise.
    """

    mode: Annotated[Literal["none", "he"], Flag("privacy")] = "none"
    key_holders: int = 1
    min_contributors: int = MIN_CONTRIBUTORS
    score_levels: int = 8
    epsilon: float | None = None

    def __post_init__(self) -> None:
        require_choices(self)
        require(self.key_holders >= 1, "key_holders", self.key_holders, "at least 1")
        least, most = 2, MAX_CONTRIBUTORS
        require(
            least <= self.min_contributors <= most,
            "min_contributors",
            self.min_contributors,
            f"from {least} to {most:,}",
        )
        require(self.score_levels >= 0, "score_levels", self.score_levels, "0 (exact) or more")
        possible = self.epsilon is None or self.epsilon >= MIN_EPSILON
        require(possible, "epsilon", self.epsilon, f"at least {MIN_EPSILON:g}, or none")

    @property
    def levels(self) -> int | None:
        """The levels in which statistics are reported; None for exact ones."""
        return self.score_levels or None if self.mode == "he" else None
