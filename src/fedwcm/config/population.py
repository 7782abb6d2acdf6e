"""The facts about a federation that a run starts from."""

from fedwcm.config.schema import Config, RunOptions
from fedwcm.core.types import Ints, Population
from fedwcm.engine.federation import Federation


def population_of(config: Config, federation: Federation, smallest: int) -> Population:
    """Return what server and clients know about the federation before the first round."""
    totals = _class_totals(federation, config.run)
    return Population(
        clients=len(federation.samples),
        classes=len(totals),
        mean_samples=float(federation.samples.mean()),
        prior=totals / totals.sum(),
        rounds=config.run.rounds,
        epochs=config.local.epochs,
        batch_size=config.local.batch_size,
        steps=config.local.steps,
        momentum=config.local.momentum,
        nesterov=config.local.nesterov,
        smallest_batch=smallest,
        target=config.run.target_shares,
    )


def _class_totals(federation: Federation, options: RunOptions) -> Ints:
    """Return the samples per class over all clients, summed directly or under homomorphic encryption."""
    if options.privacy == "he":
        from fedwcm.privacy import sum_counts

        return sum_counts(federation.counts, key_holders=options.key_holders).totals
    totals: Ints = federation.counts.sum(axis=0)
    return totals


def largest_cohort(config: Config, population: Population) -> int:
    """Return the number of clients that are sampled for a round."""
    return max(1, round(config.participation.fraction * population.clients))
