"""The job on FedLab's standalone simulation: its serial trainer, in one process.

    python -m benchmarks.contenders.on_fedlab JOB ROUNDS THREADS

FedLab imports torchvision for data sets that are not used here, and torchvision does not load beside the CPU build
of this torch: an empty module takes its place.
"""
# ruff: noqa: E402 (torchvision must be replaced before FedLab is imported)

import sys
from types import ModuleType

for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
    sys.modules[name] = ModuleType(name)
sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
sys.modules["torchvision"].datasets = sys.modules["torchvision.datasets"]

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gate import Gate
from benchmarks.training import Data, arguments, load, make_model, quality


class Clients:
    """What FedLab asks of a federated data set."""

    def __init__(self, data: Data) -> None:
        self._parts = [TensorDataset(data.inputs[rows], data.labels[rows]) for rows in data.clients]

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self._parts[client], batch_size=batch_size, shuffle=True)


class Clipped(torch.optim.SGD):
    """SGD on clipped gradients: FedLab's trainer has no such option."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, clip: float) -> None:
        super().__init__(parameters, lr)
        self._clipped, self._clip = parameters, clip

    def step(self, closure: None = None) -> None:
        nn.utils.clip_grad_norm_(self._clipped, self._clip)
        super().step(closure)


class Gated(StandalonePipeline):
    """Stops at the gate after every round but the last."""

    def __init__(self, handler: SyncServerHandler, trainer: SGDSerialClientTrainer, gate: Gate) -> None:
        super().__init__(handler, trainer)
        self._gate = gate

    def evaluate(self) -> None:
        if not self.handler.if_stop:
            self._gate.wait()


def main() -> None:
    """Play the rounds."""
    job, rounds, (threads,) = arguments()
    gate, data = Gate(), load(job)
    torch.set_num_threads(int(threads))
    trainer = SGDSerialClientTrainer(make_model(job), job.clients)
    trainer.setup_dataset(Clients(data))
    trainer.setup_optim(job.epochs, job.batch_size, job.lr)
    if job.clip is not None:
        trainer.optimizer = Clipped(list(trainer.model.parameters()), job.lr, job.clip)
    handler = SyncServerHandler(make_model(job), rounds, job.cohort / job.clients)
    gate.wait()
    Gated(handler, trainer, gate).main()
    gate.finish(**quality(handler.model, data))


if __name__ == "__main__":
    main()
