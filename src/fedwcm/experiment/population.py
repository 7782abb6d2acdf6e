"""The facts about a federation that a run starts from."""

from fedwcm.config.schema import Config
from fedwcm.core.types import Ints, Population


def population_of(
    config: Config, totals: Ints, deviation: float, clients: int, mean_samples: float, smallest_batch: int = 1
) -> Population:
    """Return what server and clients know about the federation before the first round."""
    return Population(
        clients=clients,
        classes=len(totals),
        mean_samples=mean_samples,
        prior=totals / totals.sum(),
        rounds=config.run.rounds,
        epochs=config.local.epochs,
        batch_size=config.local.batch_size,
        steps=config.local.steps,
        momentum=config.local.momentum,
        nesterov=config.local.nesterov,
        smallest_batch=smallest_batch,
        target=config.run.target_shares,
        deviation=deviation,
    )
