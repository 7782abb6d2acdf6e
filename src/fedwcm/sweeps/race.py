"""`--method auto`: recipes race over a few rounds, and the best on validation data runs to the end."""

import logging
from collections.abc import Callable
from dataclasses import replace

from fedwcm.config.recipes import CANDIDATES
from fedwcm.config.schema import Config
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.start import start

LOG = logging.getLogger("fedwcm")
SHARE = 0.25
"""Of the run's rounds."""


def choose_recipe(describe: Callable[[str], Config]) -> str:
    """Return the recipe with the highest balanced accuracy on validation data after a quarter of the rounds.

    Args:
        describe: returns the run that is asked for, with a recipe in place of `auto`.
    """
    scores = {name: _validate(describe(name)) for name in CANDIDATES}
    best = max(scores, key=lambda name: scores[name])
    listed = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
    LOG.info(f"auto takes {best}: balanced accuracy on validation data after a quarter of the rounds: {listed}")
    return best


def _validate(config: Config) -> float:
    """Return the balanced accuracy of a short run on validation data; 0 if it diverges."""
    rounds = max(1, round(SHARE * config.run.rounds))
    short = replace(config.run, rounds=rounds, eval_every=rounds, patience=0, track=())
    try:
        summary = start(replace(config, run=short), None, resume=False).summary
    except DivergedError:
        return 0.0
    score = None if summary is None else summary.val_balanced_accuracy
    if score is None:
        raise ValueError("method = 'auto' chooses on validation data: give val_fraction, or val_clients")
    return score
