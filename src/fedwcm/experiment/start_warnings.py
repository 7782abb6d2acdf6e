"""What a user should know of a run before its first round."""

import warnings

from fedwcm.config.recipes import RECIPES
from fedwcm.config.settings import to_settings
from fedwcm.core.mixins import ClientStatistics, Momentum
from fedwcm.experiment.build import Experiment
from fedwcm.experiment.records import title_of


class MomentumGainWarning(UserWarning):
    """The momentum has a gain of 1 or more: it grows whatever the data."""


def warn_at_start(experiment: Experiment) -> None:
    """Warn of growing momentum, rounds of one client, classes corrected for twice, and an idle target."""
    _warn_of_gain(experiment)
    _warn_of_single_clients(experiment)
    _warn_of_double_correction(experiment)
    _warn_of_idle_target(experiment)


def _warn_of_gain(experiment: Experiment) -> None:
    trainer, config = experiment.rounds.trainer, experiment.config
    if not isinstance(trainer.method, Momentum):
        return
    gain = trainer.method.starting_gain(trainer.population, experiment.rounds.federation.samples)
    if gain >= 1:
        title = title_of(config.title, config.method.name, config.loss.name, config.sampler.name)
        warnings.warn(
            f"the momentum of {title} starts with a gain of {gain:.3f}: at 1 or more it "
            "grows round by round, whatever the data. To avoid it: method.momentum_norm=exact",
            MomentumGainWarning,
            stacklevel=3,
        )


def _warn_of_single_clients(experiment: Experiment) -> None:
    sampled, clients = experiment.config.participation, len(experiment.rounds.federation.samples)
    if sampled.sampling == "fixed" and sampled.cohort_size(clients) == 1 < clients:
        text = f"participation.fraction = {sampled.fraction:g} of {clients} clients is one client per round"
        warnings.warn(f"{text}: there is nothing to weight; with few clients, set it to 1", stacklevel=3)


def _warn_of_double_correction(experiment: Experiment) -> None:
    trainer = experiment.rounds.trainer
    if trainer.sampler.balances_classes and trainer.loss.corrects_prior and not _by_recipe(experiment):
        warnings.warn(
            f"the sampler {trainer.sampler.name} and the loss {trainer.loss.name} both correct for the class "
            "distribution: together they favour rare classes; use one of them",
            stacklevel=3,
        )


def _warn_of_idle_target(experiment: Experiment) -> None:
    trainer = experiment.rounds.trainer
    followed = isinstance(trainer.method, ClientStatistics) or trainer.loss.follows_target
    if experiment.config.run.target is not None and not followed:
        text = f"run.target changes nothing in training with {trainer.method.name} and {trainer.loss.name}"
        warnings.warn(f"{text}: only evaluate --mix target follows it", stacklevel=3)


def _by_recipe(experiment: Experiment) -> bool:
    """Whether loss and sampler are those of a recipe, which chooses both on purpose."""
    settings = to_settings(experiment.config)
    both = [r.settings for r in RECIPES.values() if {"loss.name", "sampler.name"} <= r.settings.keys()]
    return any(
        all(settings.get(key) == recipe[key] for key in recipe if key.startswith(("loss.", "sampler.")))
        for recipe in both
    )
