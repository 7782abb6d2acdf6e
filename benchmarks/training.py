"""What every contender but ours shares: the data, the model, and a careful plain local training."""

import sys
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.jobs import CLASSES, DRAWN_CLIENTS, JOBS, SEED, Job
from fedwcm.core.rng import model_seed
from fedwcm.data.synthetic import SyntheticFederation
from fedwcm.models import build_model
from fedwcm.models.convolutions import LiveConv2d

TESTED = 2000
"""Training samples on which the final model is tested, to show that all contenders learnt the same."""


@dataclass(frozen=True, eq=False)
class Data:
    """One resident data set, and the rows of each client."""

    inputs: Tensor
    labels: Tensor
    clients: Tensor


def load(job: Job) -> Data:
    """The data of a job, mapped into memory: processes on one machine share them. Addressed ones are drawn."""
    if job.addressed:
        return _drawn()
    names = ("inputs", "labels", "clients")
    arrays = [np.load(job.folder / f"{name}.npy", mmap_mode="c") for name in names]
    return Data(*map(torch.from_numpy, arrays))


def _drawn() -> Data:
    federation = SyntheticFederation(DRAWN_CLIENTS, 0.1, 0.1, SEED, torch.device("cpu"))
    stores = [federation.shard(client).store for client in range(DRAWN_CLIENTS)]
    inputs = torch.cat([store.inputs[:] for store in stores])
    labels = torch.cat([store.labels for store in stores])
    return Data(inputs, labels, torch.arange(len(labels)).view(DRAWN_CLIENTS, -1))


def make_model(job: Job) -> nn.Module:
    """The model of a job: the same weights for everybody, and the convolutions that others would write."""
    model = build_model(job.model, job.input_shape, CLASSES, model_seed(SEED), **job.model_options)
    for module in model.modules():
        if isinstance(module, LiveConv2d):
            module.__class__ = nn.Conv2d  # type: ignore[assignment]  # leaving dead taps out is this package's own doing
    return model


@cache
def resident(name: str) -> tuple[Job, Data, nn.Module]:
    """Data and model of a job, loaded once in each worker process, which computes on one thread."""
    torch.set_num_threads(1)
    job = JOBS[name]
    return job, load(job), make_model(job)


def train(model: nn.Module, data: Data, rows: Tensor, job: Job) -> None:
    """Train a client: torch's SGD, in its fastest form, over freshly shuffled epochs.

    On J1 a step by hand, `_foreach_add_` on the parameters, would make a round a tenth faster.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr, fused=True)
    for _ in range(job.epochs):
        for batch in rows[torch.randperm(len(rows))].split(job.batch_size):
            optimizer.zero_grad()
            cross_entropy(model(data.inputs[batch]), data.labels[batch]).backward()
            if job.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), job.clip)
            optimizer.step()


def quality(model: nn.Module, data: Data) -> dict[str, float]:
    """Mean loss and accuracy on the first training samples."""
    model.eval()
    with torch.no_grad():
        labels = data.labels[:TESTED]
        scores = torch.cat([model(chunk) for chunk in data.inputs[:TESTED].split(500)])
        loss, correct = cross_entropy(scores, labels), (scores.argmax(dim=1) == labels).float().mean()
    return {"loss": float(loss), "accuracy": float(correct)}


def arguments() -> tuple[Job, int, list[str]]:
    """The job, the rounds to run, and what else the command line says."""
    name, rounds, *rest = sys.argv[1:]
    return JOBS[name], int(rounds), rest
