"""Results of blocks of clients, and the order in which a block takes its steps."""

import numpy as np
import pytest
import torch

from fedwcm.engine.backends.in_process import BlockCollector
from fedwcm.engine.batches import Schedule
from fedwcm.engine.client import ClientUpdates
from tests.factories import clusters

NUMBERS = np.zeros(3)


def block(lent: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What a block of all clients sent, and what the collector has of it."""
    ids, sent = np.arange(3), torch.arange(6.0).reshape(3, 2)
    collector = BlockCollector(ids) if lent is None else BlockCollector(ids, lent=lent)
    collector.put(ClientUpdates(ids, {"increment": sent}, {}, {}, NUMBERS, NUMBERS, NUMBERS))
    return sent, collector.result().upload["increment"]


def test_uploads_in_memory_that_is_overwritten_are_copied() -> None:
    sent, kept = block(None)
    sent.zero_()
    assert kept.tolist() == [[0, 1], [2, 3], [4, 5]]
    sent, kept = block(False)
    assert kept is sent


def test_a_block_has_the_clients_with_most_steps_first() -> None:
    shards = [clusters().federation.shard(client) for client in (0, 1)]
    with pytest.raises(ValueError, match="longest first"):
        Schedule(shards, np.arange(3), np.array([[1, 0], [1, 1]]))
    assert len([*Schedule(shards, np.arange(3), np.array([[1, 1], [1, 0]]))]) == 2
