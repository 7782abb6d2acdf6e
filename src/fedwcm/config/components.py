"""The chosen method, loss and sampler, and the local training that they make: for any engine."""

from dataclasses import dataclass, replace

from fedwcm.config.options import make, plain
from fedwcm.config.schema import Component, Config
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.core.sampler import Sampler
from fedwcm.core.types import Population
from fedwcm.data.augment import FlipCrop
from fedwcm.engine.client import ClientTrainer
from fedwcm.engine.forward import Forward
from fedwcm.losses import LOSSES
from fedwcm.methods import METHODS
from fedwcm.samplers import SAMPLERS


@dataclass(frozen=True)
class Parts:
    """What a configuration names, with its options checked."""

    method: Method
    loss: Loss
    sampler: Sampler

    @classmethod
    def of(cls, config: Config) -> "Parts":
        """Those of this configuration."""
        return cls(
            make(METHODS[config.method.name], config.method.options, "method"),
            make(LOSSES[config.loss.name], config.loss.options, "loss"),
            make(SAMPLERS[config.sampler.name], config.sampler.options, "sampler"),
        )

    def resolved(self, config: Config) -> Config:
        """The configuration with every option of its parts, also those that were left to their defaults."""
        return replace(
            config,
            method=Component(config.method.name, plain(self.method)),
            loss=Component(config.loss.name, plain(self.loss)),
            sampler=Component(config.sampler.name, plain(self.sampler)),
        )

    def trainer(self, config: Config, forward: Forward, population: Population) -> ClientTrainer:
        """How the clients of a run train."""
        return ClientTrainer(
            method=self.method,
            loss=self.loss,
            sampler=self.sampler,
            augmentation=FlipCrop() if config.data.augment else None,
            forward=forward,
            population=population,
            weight_decay=config.local.weight_decay,
            clip=config.local.clip,
            seed=config.run.seed,
        )
