"""The contract of losses, over the whole registry."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.loss import Loss
from fedwcm.core.types import Clients, Context, Population, State
from fedwcm.losses import LOSSES
from fedwcm.testing import check_loss

NAMES = [name for name in LOSSES if name != "distillation"]
"""Distillation needs a teacher's file."""


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_keeps_the_contract(name: str) -> None:
    check_loss(LOSSES[name])


@dataclass(frozen=True, kw_only=True)
class Diluted(Loss):
    """Leaves padding out of the sum, and counts it in the number of samples."""

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        values = torch.logsumexp(outputs.logits, dim=-1)
        return (values if batch.weight is None else values * batch.weight).mean(1), o


@dataclass(frozen=True, kw_only=True)
class Growing(Loss):
    """Keeps a vector that becomes longer."""

    def init_client(self, clients: Clients, population: Population) -> State:
        return {"seen": torch.zeros(len(clients), 1)}

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        seen = torch.cat([o["seen"], o["seen"][:, :1]], dim=1) if len(batch.labels) == 1 else o["seen"]
        return batch.mean(torch.logsumexp(outputs.logits, dim=-1)), {"seen": seen}


@pytest.mark.parametrize(("loss", "complaint"), [(Diluted(), r"batch\.mean"), (Growing(), "changed its layout")])
def test_a_loss_that_breaks_the_contract_is_told_how(loss: Loss, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_loss(loss)
