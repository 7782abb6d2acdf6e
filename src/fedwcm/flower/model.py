"""The model, as the server and the clients of a run build it alike."""

from collections.abc import Callable

import torch
from torch import nn

from fedwcm.config.device import chosen_device
from fedwcm.config.schema import Config
from fedwcm.core.rng import model_seed
from fedwcm.engine.network import Network

ModelFactory = Callable[[], nn.Module]
"""Makes the model, the same layers every time."""


def network(model: ModelFactory, config: Config, device: str | None = None) -> Network:
    """The model with the initial weights that the run's seed gives, as the simulator would draw them."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(model_seed(config.run.seed))
        module = model()
    if not isinstance(module, nn.Module):
        raise ValueError(f"the model function gives a {type(module).__name__}: it must be a torch.nn.Module")
    return Network(module, chosen_device(device or config.run.device))
