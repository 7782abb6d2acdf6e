"""The job on pfl-research, in one process or, started by torchrun, in several.

    python -m benchmarks.contenders.on_pfl JOB ROUNDS ordered|shuffled THREADS

`ordered` is pfl as it comes: every epoch visits the same batches in the same order. `shuffled` draws them anew, as
the other contenders do.
"""

from collections.abc import Iterator

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.gate import Gate
from benchmarks.training import arguments, load, make_model, quality


class Trainable(nn.Module):
    """The job's model with the two methods that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.inner(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(inputs, labels)) * len(labels), len(labels))}


class Shuffled(PyTorchTensorDataset):
    """A client's data in a new order every epoch."""

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        inputs, labels = self.raw_data
        for batch in torch.randperm(len(labels)).split(batch_size or len(labels)):
            yield [inputs[batch], labels[batch]]


class Gated(TrainingProcessCallback):
    """Stops at the gate before every round: the first process there, the others waiting for it."""

    def __init__(self, gate: Gate | None, rounds: int) -> None:
        self._gate, self._rounds = gate, rounds

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if central_iteration + 1 < self._rounds:
            self._wait()
        return False, Metrics()

    def _wait(self) -> None:
        if self._gate is not None:
            self._gate.wait()
        if pytorch_ops.distributed.world_size > 1:
            torch.distributed.barrier()


def main() -> None:
    """Play the rounds."""
    job, rounds, (order, threads) = arguments()
    first = pytorch_ops.distributed.global_rank == 0
    gate = Gate() if first else None
    torch.set_num_threads(int(threads))
    data, inner = load(job), make_model(job)
    kind = Shuffled if order == "shuffled" else PyTorchTensorDataset
    clients = {
        client: kind((data.inputs[rows], data.labels[rows]), user_id=str(client))
        for client, rows in enumerate(data.clients)
    }
    sampler = get_user_sampler("minimize_reuse", list(clients))
    federation = FederatedDataset(clients.__getitem__, sampler)
    module = Trainable(inner)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,  # evaluates at the first round only, which is not timed
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=federation, val_data=federation),
        model,
        NNTrainHyperParams(
            local_num_epochs=job.epochs,
            local_learning_rate=job.lr,
            local_batch_size=job.batch_size,
            local_max_grad_norm=job.clip,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Gated(gate, rounds)],
        send_metrics_to_platform=False,
    )
    if gate is not None:
        gate.finish(**quality(inner, data))


if __name__ == "__main__":
    main()
