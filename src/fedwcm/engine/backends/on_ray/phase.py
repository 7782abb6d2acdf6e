"""A phase of a round on the cluster: who trains whom, what is lost with a worker, and sums over what they keep."""

import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from fedwcm.core.types import Floats, Ints, State
from fedwcm.engine.backends.errors import WorkerDiedWarning, WorkerError, clients_text, place
from fedwcm.engine.backends.in_process import StateStore
from fedwcm.engine.backends.on_ray.fixed_point import in_units_of_one, unit
from fedwcm.engine.backends.on_ray.packing import pack, unpack
from fedwcm.engine.backends.on_ray.pool import ATTEMPTS, Member, WorkerPool
from fedwcm.engine.backends.on_ray.worker import BlockAnswer
from fedwcm.engine.client import Broadcast, Task

CPU = torch.device("cpu")


class Phase:
    """Clients that work on the cluster. Their uploads are with the workers until the next phase begins.

    Args:
        number: of the phase in the run, by which workers tell an old one from a new one.
        put: takes the answers of blocks, in any order; those of a block that is trained again are the same.
    """

    def __init__(
        self,
        number: int,
        task: Task,
        sent: Broadcast,
        pool: WorkerPool,
        store: StateStore,
        put: Callable[[BlockAnswer], None],
    ) -> None:
        self._number, self._task, self._round = number, task, sent.round
        self._sent = ray.put(pack(sent))
        self._pool, self._store, self._put = pool, store, put
        self._kept: dict[Member, list[Ints]] = {}
        self._deaths: Counter[tuple[int, ...]] = Counter()

    def train(self, blocks: Sequence[Ints]) -> None:
        """Let all blocks work, each on whoever is free first."""
        waiting, running = deque(blocks), dict[Any, tuple[Member, Ints]]()
        while waiting or running:
            self._pool.require_some()
            self._hand_out(waiting, running)
            ready, _ = ray.wait([*running, *self._pool.starting], num_returns=1)
            for answer in ready:
                if answer not in running:
                    self._pool.take_in(answer)
                    continue
                member, block = running[answer]
                try:
                    self._receive(member, block, answer)
                    del running[answer]
                except RayTaskError as error:
                    where = place(self._round, block)
                    raise WorkerError(f"{where}: a worker failed:\n{error}") from None
                except RayError as error:
                    waiting.extendleft(reversed(self._forget_worker(member, str(error), running)))

    def sum(self, key: str, ids: Ints, weights: Floats, bound: float, dtype: torch.dtype) -> Tensor:
        """Return sums over these clients, `(m, P)`; clients whose worker is gone are trained again first."""
        scale = unit(bound)
        total: Floats = self._from_workers(lambda: self._tree(key, ids, weights, scale))
        return in_units_of_one(total, scale, dtype)

    def rows(self, key: str, ids: Ints) -> Tensor:
        """Return the uploads of these clients themselves."""

        def collect() -> list[tuple[Ints, Any]]:
            return [(own, m.actor.rows.remote(self._number, key, own)) for m, own in self._owners(ids)]

        parts = self._from_workers(lambda: [(own, ray.get(ref)) for own, ref in collect()])
        order = np.argsort(np.concatenate([own for own, _ in parts]))
        stacked: Tensor = torch.cat([unpack(packed, CPU) for _, packed in parts])
        return stacked[torch.from_numpy(order)]

    def _hand_out(self, waiting: deque[Ints], running: dict[Any, tuple[Member, Ints]]) -> None:
        """Give every worker a block, and a second one to go on with while there are plenty."""
        load = Counter(member for member, _ in running.values())
        for level in (1, 2):
            for member in self._pool.members:
                if waiting and load[member] < level and (level == 1 or len(waiting) > len(self._pool.members)):
                    block = waiting.popleft()
                    running[self._give(member, block)] = member, block
                    load[member] += 1

    def _give(self, member: Member, block: Ints) -> Any:
        visited, state = np.zeros(len(block), dtype=np.bool_), State()
        if self._store.keeps_anything:
            visited, state = self._store.has(block), self._store.read(block, CPU)
        return member.actor.train.remote(self._number, self._task, self._sent, block, visited, pack(state))

    def _receive(self, member: Member, block: Ints, answer: Any) -> None:
        said: BlockAnswer = ray.get(answer)
        self._store.stage(said.updates.ids, unpack(said.state, CPU))
        self._put(said)
        self._kept.setdefault(member, []).append(block)

    def _forget_worker(self, member: Member, how: str, running: dict[Any, tuple[Member, Ints]]) -> list[Ints]:
        """Forget a worker; return the blocks that went with it, those it had finished among them."""
        underway = {answer: block for answer, (owner, block) in running.items() if owner is member}
        for answer in underway:
            del running[answer]
        blocks = [*underway.values(), *self._kept.pop(member, [])]
        named = clients_text(np.concatenate(blocks)) if blocks else "no clients"
        said = f"round {self._round + 1}, {named}: a worker was lost ({how.splitlines()[0]})"
        begun = next(iter(underway.values()), None)  # workers train one block at a time
        if begun is not None:
            self._deaths[tuple(begun)] += 1
            if self._deaths[tuple(begun)] == ATTEMPTS:
                raise WorkerError(f"{said}, like {ATTEMPTS - 1} others before") from None
        warnings.warn(f"{said}; others train them again", WorkerDiedWarning, stacklevel=2)
        self._pool.drop(member)
        self._pool.fill()
        return blocks

    def _from_workers(self, ask: Callable[[], Any]) -> Any:
        """Return what the workers say; if one is lost meanwhile, others first train its clients again."""
        for _ in range(ATTEMPTS):
            try:
                return ask()
            except RayError as error:
                failure = error
                lost = list(self._pool.find_lost())
            for member in lost:
                self.train(self._forget_worker(member, str(failure), {}))
        raise WorkerError(f"round {self._round + 1}: uploads could not be summed: {failure}")

    def _owners(self, ids: Ints) -> list[tuple[Member, Ints]]:
        """Return the workers that keep uploads of these clients, ordered by node, with the clients of each."""
        owners = []
        for member in self._pool.members:
            own = np.intersect1d(ids, np.concatenate([ids[:0], *self._kept.get(member, [])]))
            if len(own):
                owners.append((member, own))
        return owners

    def _tree(self, key: str, ids: Ints, weights: Floats, scale: float) -> Floats:
        """Let all workers form their own sums, and each add those of two others; the server adds the last two."""
        owners = self._owners(ids)
        sums = [(self._number, key, own, weights[:, np.searchsorted(ids, own)], scale) for _, own in owners]
        inner = [at for at in range(len(owners)) if 2 * at + 2 < len(owners)]
        for at in inner:  # all at once: a call that waits for the sums of others would begin late
            owners[at][0].actor.add_own.remote(*sums[at])

        def branch(at: int) -> Any:
            actor = owners[at][0].actor
            if at not in inner:
                return actor.sum_own.remote(*sums[at])
            return actor.total.remote(*branches(2 * at + 2))

        def branches(first: int) -> list[Any]:
            return [branch(at) for at in (first, first + 1) if at < len(owners)]

        total: Floats = sum(ray.get(branches(0)))
        return total
