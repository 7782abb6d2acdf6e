"""torch's global generator, which initial weights and dropout draw from: one thread has it at a time."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a worker that is forked must not inherit a lock that another thread holds
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


@contextmanager
def own_torch_generator(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Keep other runs of this process away from torch's global generator; afterwards it is as it was before.

    Args:
        devices: GPUs whose generators are put back, too.
    """
    with _LOCK, torch.random.fork_rng(list(devices)):
        yield
