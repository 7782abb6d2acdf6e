"""The loop that a careful person writes without a framework: one module, one resident tensor, plain SGD.

python -m benchmarks.contenders.plain JOB ROUNDS threads N      # in one process
python -m benchmarks.contenders.plain JOB ROUNDS processes N    # in forked ones, that write into shared memory
"""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from benchmarks.gate import Gate
from benchmarks.jobs import Job
from benchmarks.training import Data, arguments, load, make_model, quality, train


class Worker:
    """Trains clients one after the other and adds up their models."""

    def __init__(self, job: Job, data: Data, model: nn.Module) -> None:
        self.job, self._data, self.model = job, data, model
        self._parameters = [p.detach() for p in model.parameters()]
        self.sums = [torch.zeros_like(p).share_memory_() for p in self._parameters]

    def train(self, x: list[Tensor], clients: Sequence[int]) -> None:
        torch._foreach_zero_(self.sums)
        for client in clients:
            torch._foreach_copy_(self._parameters, x)
            train(self.model, self._data, self._data.clients[client], self.job)
            torch._foreach_add_(self.sums, self._parameters)

    def serve(self, x: list[Tensor], pipe: Connection) -> None:
        """Train what the parent asks for until it hangs up."""
        torch.set_num_threads(1)
        while clients := pipe.recv():
            self.train(x, clients)
            pipe.send(True)


class Here:
    """All clients in this process."""

    def __init__(self, worker: Worker, x: list[Tensor]) -> None:
        self._worker, self._x = worker, x

    def sums(self, clients: list[int]) -> list[list[Tensor]]:
        self._worker.train(self._x, clients)
        return [self._worker.sums]


class Forked:
    """Clients dealt out to processes that were forked once."""

    def __init__(self, workers: list[Worker], x: list[Tensor]) -> None:
        context = multiprocessing.get_context("fork")
        self._workers, self._pipes = workers, []
        for worker in workers:
            ours, theirs = context.Pipe()
            context.Process(target=worker.serve, args=(x, theirs), daemon=True).start()
            self._pipes.append(ours)

    def sums(self, clients: list[int]) -> list[list[Tensor]]:
        for number, pipe in enumerate(self._pipes):
            pipe.send(clients[number :: len(self._pipes)])
        for pipe in self._pipes:
            pipe.recv()
        return [worker.sums for worker in self._workers]


def play(kind: type[Worker]) -> None:
    """Play the rounds with workers of this kind."""
    job, rounds, (how, count) = arguments()
    gate, data, model = Gate(), load(job), make_model(job)
    torch.set_num_threads(int(count) if how == "threads" else 1)
    x = [p.detach().clone().share_memory_() for p in model.parameters()]
    workers = [kind(job, data, model) for _ in range(int(count) if how == "processes" else 1)]
    team = Forked(workers, x) if how == "processes" else Here(workers[0], x)
    for _ in range(rounds):
        gate.wait()
        sums = team.sums(torch.randperm(job.clients)[: job.cohort].tolist())
        torch._foreach_zero_(x)
        for part in sums:
            torch._foreach_add_(x, part, alpha=1 / job.cohort)
    with torch.no_grad():
        torch._foreach_copy_(list(model.parameters()), x)
    gate.finish(**quality(model, data))


if __name__ == "__main__":
    play(Worker)
