"""Fine-tuning a trained model at a client: the local training loop, once, for that client alone."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from fedwcm.core.batch import Shard
from fedwcm.core.method import Method
from fedwcm.core.types import Context, GradientOracle, Layout, State, Vec
from fedwcm.engine.client import Broadcast, ClientTrainer

Layers = Literal["all", "head"]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadOnly(Method):
    """Plain local training of the parameters that the mask is 1 for."""

    mask: Vec

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w).mul(self.mask), c


def fine_tuner(trainer: ClientTrainer, epochs: int, layers: Layers) -> ClientTrainer:
    """Return the trainer of a run, for plain local training of this many epochs instead of the run's method.

    What the method adds to a local step (momentum, control variates, proximal terms) holds clients together while
    they train a common model, and has no place here; the loss, the sampler and the batches are those of the run.
    """
    network = trainer.forward.network
    population = replace(trainer.population, epochs=epochs, steps=None)
    if layers == "all":
        return replace(trainer, method=Method(), population=population)
    method = HeadOnly(mask=head_mask(network.layout).to(network.device))
    steady = replace(trainer.optimizer, weight_decay=0.0)  # decay would move the body
    return replace(trainer, method=method, population=population, optimizer=steady)


def head_mask(layout: Layout) -> Vec:
    """1 for the parameters of the head, 0 for all others."""
    if not layout.head_slices:
        raise ValueError("layers = 'head' is not allowed for this model: it has no final linear layer")
    mask = torch.zeros(layout.size)
    for part in layout.head_slices:
        mask[part.start : part.stop] = 1.0
    return mask


def fine_tune(trainer: ClientTrainer, client: int, shard: Shard, sent: Broadcast) -> tuple[Vec, Vec]:
    """Return the parameters and buffers of a client after its local training; for the head alone, buffers stay."""
    ids = np.array([client])
    state = trainer.initial_state(trainer.clients(ids, [shard]), sent.x)
    upload = trainer.train(ids, [shard], state, sent).upload
    tracks = "buffers" in upload and not isinstance(trainer.method, HeadOnly)
    return sent.x + upload["delta"][0], upload["buffers"][0] if tracks else sent.buffers
