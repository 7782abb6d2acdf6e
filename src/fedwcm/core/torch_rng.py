"""Global state that runs in threads share: torch's generator, its modes, and Python's parser."""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a worker that is forked must not inherit a lock that another thread holds
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


@contextmanager
def one_thread_at_a_time() -> Iterator[None]:
    """Keep other runs of this process from where threads disturb each other.

    Python before 3.11.8 is such a place, when it parses: reading arrays and sources does (python/cpython#106905).
    """
    with _LOCK:
        yield


@contextmanager
def own_torch_generator(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Keep other runs of this process away from torch's global generator; afterwards it is as it was before.

    Args:
        devices: GPUs whose generators are put back, too.
    """
    with one_thread_at_a_time(), torch.random.fork_rng(list(devices)):
        yield


@contextmanager
def default_torch_modes() -> Iterator[None]:
    """Compute as torch does by default, whatever the caller has set: float32, gradients, and no autocast.

    A process of `multiprocessing.Pool` computes with one thread: others share its cores, and a forked one would
    wait forever for threads that only its parent has.
    """
    before = torch.get_default_dtype()
    if multiprocessing.current_process().daemon:
        torch.set_num_threads(1)
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if before != torch.float32:
            modes.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(torch.float32)
        yield
