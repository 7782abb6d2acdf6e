"""The workers of a run: as many as asked for, or as the cluster has room for, replaced when they are lost."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from fedwcm.core.batch import Federation
from fedwcm.engine.backends.errors import WorkerError
from fedwcm.engine.backends.on_ray.cluster import Cluster, end_worker, room_for
from fedwcm.engine.backends.on_ray.packing import pack
from fedwcm.engine.backends.on_ray.worker import RayWorker, WorkerSetup

ATTEMPTS = 3
"""How often the same thing may fail: to start a worker, to train a block of clients, to sum what workers hold."""

PATIENCE = 120.0
"""Seconds in which a round without any worker waits for the first one."""


@dataclass(frozen=True, eq=False)
class Member:
    """A worker that is ready, and the node that it is on."""

    actor: Any
    node: str


class WorkerPool:
    """Actors of the cluster. Everything that they are told once is put into the object store once.

    Args:
        size: workers; 0 for as many as the cluster has room for, whenever a phase begins.
        gpus: share of a GPU for each; 0 for a core.
    """

    def __init__(
        self, cluster: Cluster, size: int, gpus: float, setup: WorkerSetup, federation: Federation
    ) -> None:
        self._cluster, self._size, self._gpus = cluster, size, gpus
        self._setup: Any = ray.put(pack(setup))
        self._federation: Any = None if setup.read is not None else ray.put(pack(federation))
        self._starting: dict[Any, Any] = {}
        self._failures = 0
        self.members: list[Member] = []

    @property
    def wanted(self) -> int:
        """How many workers there are to be now."""
        return self._size or max(1, room_for(self._gpus))

    def fill(self) -> None:
        """Start the workers that are missing; they are used as soon as they are ready."""
        kind: Any = ray.remote(RayWorker)
        kind = kind.options(num_cpus=0 if self._gpus else 1, num_gpus=self._gpus or None, max_restarts=0)
        for _ in range(self.wanted - len(self.members) - len(self._starting)):
            actor = self._cluster.spare_worker(self._gpus) or kind.remote()
            self._starting[actor.prepare.remote(self._setup, self._federation)] = actor

    @property
    def starting(self) -> list[Any]:
        """What becomes ready when a worker does, or fails to."""
        return list(self._starting)

    def take_in(self, ready: Any) -> None:
        """Take in a worker that is ready; WorkerError if it is one too many in a row that failed to start."""
        actor = self._starting.pop(ready)
        try:
            self.members.append(Member(actor, ray.get(ready)))
            self.members.sort(key=lambda member: member.node)
            self._failures = 0
        except RayActorError as error:
            self._failures += 1
            if self._failures == ATTEMPTS:
                raise WorkerError(f"{ATTEMPTS} workers in a row failed to start: {error}") from None
            self.fill()

    def require_some(self) -> None:
        """Wait until there is a worker; WorkerError if the cluster has no room for one."""
        while not self.members:
            ready, _ = ray.wait(self.starting, num_returns=1, timeout=PATIENCE)
            if not ready:
                each = f"{self._gpus} of a GPU" if self._gpus else "a core"
                left = ray.available_resources()
                raise WorkerError(
                    f"no worker could start within {PATIENCE:.0f} s: each needs {each}, and the cluster has "
                    f"{left} left. Change run.workers or run.worker_gpus, or add nodes"
                )
            self.take_in(ready[0])

    def drop(self, member: Member) -> None:
        """Forget a worker that is lost."""
        self.members.remove(member)
        end_worker(member.actor)

    def find_lost(self) -> Iterator[Member]:
        """Ping every worker, and yield those that do not answer."""
        signs = [(member, member.actor.ready.remote()) for member in self.members]
        for member, sign in signs:
            try:
                ray.get(sign, timeout=PATIENCE)
            except RayError:
                yield member

    def close(self, idle: bool) -> None:
        """Give back the workers, if they are idle, and what was put into the object store; end the others."""
        for member in self.members:
            if idle:
                self._cluster.keep_worker(self._gpus, member.actor)
            else:
                end_worker(member.actor)
        for actor in self._starting.values():
            end_worker(actor)
        self.members.clear()
        self._starting.clear()
        self._setup = self._federation = None
