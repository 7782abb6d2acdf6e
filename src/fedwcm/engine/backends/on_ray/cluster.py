"""The connection to a Ray cluster: one that is there, or a local one that begins and ends with its use."""

import logging
import math
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from types import TracebackType
from typing import Any, ClassVar

from fedwcm.core.checks import require
from fedwcm.engine.options import LOCAL

try:
    import ray
    from ray.exceptions import RayError
except ImportError:
    raise ImportError("run.backend = 'ray' needs Ray: pip install 'fedwcm[ray]'") from None

SETTINGS = ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_worker_niceness")
"""Of Ray, all off: the first two speak up otherwise, and local workers would yield to all other programs."""


class Cluster:
    """The cluster of this process. Whoever opened the connection closes it; others use it meanwhile.

    Workers that one of several users no longer needs are kept for the next: a new one would import torch first.

    Args:
        address: of a cluster; `local` for a new one on this machine; None for the one that `RAY_ADDRESS` names
            or, if it names none, a local one.
        cores: of a local cluster; 0 for those of this machine.
    """

    _users: ClassVar[list["Cluster"]] = []
    _spares: ClassVar[dict[float, list[Any]]] = {}

    def __init__(self, address: str | None, cores: int = 0) -> None:
        self._opened = not ray.is_initialized()
        if self._opened:
            self._open(address, cores)
        self._users.append(self)

    def _open(self, address: str | None, cores: int) -> None:
        chosen = address or os.environ.get("RAY_ADDRESS") or LOCAL
        local: dict[str, Any] = {"num_cpus": cores or None, "include_dashboard": False} if chosen == LOCAL else {}
        for name in SETTINGS:
            os.environ.setdefault(name, "0")
        with _signal_handlers_kept():
            try:
                ray.init(
                    chosen, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **local
                )
            except (ConnectionError, ValueError) as error:
                allowed = f"the address of a Ray cluster, or none for a local one ({error})"
                require(False, "run.ray_address", chosen, allowed)

    def spare_worker(self, gpus: float) -> Any | None:
        """Return a worker with this share of a GPU that nobody uses, None if there is none."""
        spares = self._spares.get(gpus)
        return spares.pop() if spares else None

    def keep_worker(self, gpus: float, worker: Any) -> None:
        """Keep a worker that is no longer used for other users of the cluster; end it if there are none."""
        if len(self._users) > 1:
            self._spares.setdefault(gpus, []).append(worker)
        else:
            end_worker(worker)

    def close(self) -> None:
        """Close the connection if this object opened it; a local cluster ends."""
        if self in self._users:
            self._users.remove(self)
        if not self._users:
            for worker in chain.from_iterable(self._spares.values()):
                end_worker(worker)
            self._spares.clear()
        if self._opened:
            self._opened = False
            with _signal_handlers_kept():
                ray.shutdown()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def end_worker(worker: Any) -> None:
    """End a worker, which may be gone already."""
    with suppress(RayError):
        ray.kill(worker)


def room_for(gpus: float) -> int:
    """Return how many workers the cluster has room for: one per core or, with a share of a GPU, per share."""
    nodes = ray.nodes()
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    if gpus:
        return sum(_shares(each.get("GPU", 0.0), gpus) for each in resources)
    return sum(int(each.get("CPU", 0.0)) for each in resources)


def _shares(gpus: float, share: float) -> int:
    """Return how many workers fit on a node's GPUs: a worker does not have parts of two."""
    if share >= 1:
        return int(gpus // share)
    return int(gpus) * math.floor(1 / share + 1e-9)


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Put the signal handlers back that Ray replaces."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
