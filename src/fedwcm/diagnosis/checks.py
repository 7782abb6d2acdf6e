"""A check and its result; and the checks of convolutions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fedwcm.diagnosis import convolutions
from fedwcm.diagnosis.convolutions import EXAMPLES, PLAIN_POINTWISE

PATIENCE = 120.0
"""Seconds after which a check counts as hanging."""

Status = Literal["PASS", "FAIL", "avoided", "skipped"]
"""`avoided` is a fault of this machine that the package's models work around."""


@dataclass(frozen=True)
class Check:
    """A check and its result."""

    name: str
    status: Status
    detail: str


def convolution_checks() -> Iterator[Check]:
    """Convolutions as models have them, on one thread and on two; and the one that oneDNN may get wrong."""
    tried = convolutions.check_convolutions(EXAMPLES, threads=(1, 2), timeout=PATIENCE)
    known = convolutions.check_convolutions([PLAIN_POINTWISE], threads=(1,), timeout=PATIENCE)  # two may hang
    for result in (*tried, *known):
        c, detail = result.convolution, result.problem or "its gradients are right"
        status: Status = "FAIL" if result.problem else "PASS"
        if result.problem and c == PLAIN_POINTWISE:
            status, detail = "avoided", f"{detail}; layers of a model compute it in another way (docs/models.md)"
        shape = f"{c.kernel}×{c.kernel}, stride {c.stride}, {c.channels} to {c.filters} channels"
        threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
        yield Check(f"{c.layer.rpartition(':')[2]} {shape}, {threads}", status, detail)
