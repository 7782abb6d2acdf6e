"""The jobs: how many clients, how much data each, which model, which local training."""

import json
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

CACHE = Path(__file__).parent / ".cache"
SEED = 0
CLASSES = 10
DRAWN_CLIENTS = 1000
"""Clients of an addressed job that a peer gets, as arrays: Flower's simulation keeps a node for each client."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One kind of federated training, the same for every contender.

    `dataset` is a named data set of the package; without one, samples are synthetic. Those of an `addressed` job
    are in no file: each client's are made when it is asked for them.
    """

    name: str
    title: str
    dataset: str | None
    input_shape: tuple[int, ...]
    clients: int
    samples: int
    cohort: int
    epochs: int
    batch_size: int
    model: str
    model_options: dict[str, Any] = field(default_factory=dict)
    lr: float = 0.1
    clip: float | None = None
    addressed: bool = False

    @property
    def folder(self) -> Path:
        """Where the data of the job lie: `own.npz` as this package reads it, arrays for everybody else."""
        return CACHE / self.name

    @property
    def about(self) -> dict[str, Any]:
        """What is known of the data and the model once they are made."""
        facts: dict[str, Any] = json.loads((self.folder / "about.json").read_text(encoding="utf-8"))
        return facts

    def settings(self) -> dict[str, object]:
        """The options with which this package runs the job."""
        source = {"data.dataset": str(self.folder / "own.npz"), "partition.name": "iid"}
        return {
            **({"data.dataset": "synthetic"} if self.addressed else source),
            "partition.clients": self.clients,
            "participation.fraction": self.cohort / self.clients,
            "model.name": self.model,
            **{f"model.{key}": value for key, value in self.model_options.items()},
            "local.epochs": self.epochs,
            "local.batch_size": self.batch_size,
            "local.lr": self.lr,
            "local.clip": self.clip,
            "run.seed": SEED,
        }

    def data_bytes(self, test_samples: int) -> int:
        """Bytes of all inputs and labels, in the precision that models compute with."""
        return (self.clients * self.samples + test_samples) * (4 * prod(self.input_shape) + 8)


_MLP = Job(
    name="J1",
    title="MLP: Fashion-MNIST, 100 clients of 245 samples, 10 a round, 5 epochs of batches of 50, 784-200-200-10",
    dataset="fashion-mnist",
    input_shape=(1, 28, 28),
    clients=100,
    samples=245,
    cohort=10,
    epochs=5,
    batch_size=50,
    model="mlp",
)
_CONV = Job(
    name="J2",
    title="Conv: CIFAR-10, 100 clients of 204 samples, 10 a round, 5 epochs of batches of 50, "
    "ResNet-18 with the ImageNet stem and GroupNorm(2), directions clipped at 10",
    dataset="cifar10",
    input_shape=(3, 32, 32),
    clients=100,
    samples=204,
    cohort=10,
    epochs=5,
    batch_size=50,
    model="resnet18",
    clip=10.0,
)
_TINY = Job(
    name="J3",
    title="Tiny: 1,000 clients of 40 synthetic samples of 64 features, 100 a round, 2 epochs of batches of 10, "
    "64-32-10",
    dataset=None,
    input_shape=(64,),
    clients=1000,
    samples=40,
    cohort=100,
    epochs=2,
    batch_size=10,
    model="mlp",
    model_options={"hidden": [32]},
)
_MANY = replace(
    _TINY,
    name="J4",
    title="Many: 1,000,000 clients of 40 synthetic samples, made by address, 100 a round, J3's model and training",
    clients=1_000_000,
    addressed=True,
)

JOBS = {job.name: job for job in (_MLP, _CONV, _TINY, _MANY)}
