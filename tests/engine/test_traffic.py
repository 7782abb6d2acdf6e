"""The bytes of a round: of compressed uploads, what they would take on the wire."""

from dataclasses import dataclass

import numpy as np
import torch

import fedwcm
from fedwcm.core.types import Context, Report, State, Vec


@dataclass(frozen=True, kw_only=True)
class TopK(fedwcm.Method):
    """FedAvg whose clients send the largest entries of their increments: a number and its place, 8 bytes each."""

    share: float = 0.01
    says: bool = True

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        delta = w - ctx.x
        kept = round(self.share * delta.shape[1])
        least = delta.abs().topk(kept, dim=1).values[:, -1:]
        delta = torch.where(delta.abs() >= least, delta, 0.0)
        sizes = 8.0 * delta.count_nonzero(dim=1).double().numpy()
        return {"delta": delta}, {"wire_bytes": sizes} if self.says else {}, c


def test_a_compressed_upload_counts_as_what_it_would_take() -> None:
    sent = {
        says: fedwcm.run(TopK(says=says), dataset="digits", clients=5, participation=1.0, rounds=2, epochs=1)
        for says in (True, False)
    }
    size = sent[True].summary.parameters
    assert [record.bytes_up for record in sent[False].history] == [5 * 4 * size] * 2
    reported = 8 * 5  # the entry of the report itself
    assert [record.bytes_up for record in sent[True].history] == [5 * 8 * round(0.01 * size) + reported] * 2
    assert np.isclose(sent[True].summary.final_accuracy or 0, sent[False].summary.final_accuracy or 0)
