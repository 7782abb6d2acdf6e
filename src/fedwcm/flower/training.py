"""What the server and the clients of a run build alike from its options: the model and the local training."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fedwcm.config import Config
from fedwcm.core.batches import Sampler
from fedwcm.core.forward import OneByOne
from fedwcm.core.local import LocalTraining
from fedwcm.core.method import Method
from fedwcm.core.network import Network
from fedwcm.core.objective import Objective
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Population
from fedwcm.data.augment import FlipCrop
from fedwcm.experiment import chosen_device
from fedwcm.methods import METHODS
from fedwcm.objectives import OBJECTIVES
from fedwcm.options import make
from fedwcm.samplers import SAMPLERS

ModelFactory = Callable[[], nn.Module]
"""Makes the model, the same layers every time."""


def network(model: ModelFactory, config: Config, device: str | None = None) -> Network:
    """The model with the initial weights that the run's seed gives, as the simulator would draw them."""
    seed = int(generator(config.run.seed, Purpose.MODEL).integers(2**63))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = model()
    if not isinstance(module, nn.Module):
        raise ValueError(f"the model function gives a {type(module).__name__}: it must be a torch.nn.Module")
    return Network(module, chosen_device(device or config.run.device))


@dataclass(frozen=True)
class Parts:
    """The chosen method, objective and sampler, with their options checked."""

    method: Method
    objective: Objective
    sampler: Sampler

    @classmethod
    def of(cls, config: Config) -> "Parts":
        """Those that a configuration names."""
        return cls(
            make(METHODS[config.method.name], config.method.options, "method"),
            make(OBJECTIVES[config.loss.name], config.loss.options, "loss"),
            make(SAMPLERS[config.sampler.name], config.sampler.options, "sampler"),
        )


def local_training(config: Config, parts: Parts, network: Network, population: Population) -> LocalTraining:
    """How clients of this run train."""
    return LocalTraining(
        method=parts.method,
        objective=parts.objective,
        sampler=parts.sampler,
        augmentation=FlipCrop() if config.data.augment else None,
        forward=OneByOne(network),
        population=population,
        weight_decay=config.local.weight_decay,
        clip=config.local.clip,
        seed=config.run.seed,
    )
