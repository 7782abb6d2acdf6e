"""`--method auto`: the recipe that is best on validation data."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fedwcm.config.options import make
from fedwcm.config.recipes import CANDIDATES
from fedwcm.config.schema import Component, Config
from fedwcm.core.checks import require_allowed
from fedwcm.core.ranges import Count, PositiveShare
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.build import RunData, run_data
from fedwcm.experiment.records import VALIDATION_METRICS
from fedwcm.experiment.start import start

LOG = logging.getLogger("fedwcm")


@dataclass(frozen=True)
class Choice:
    """How `auto` chooses; `auto[draws=4]` sets an option.

    Args:
        draws: of the validation samples, or clients; the mean over them decides. It is one if they are not drawn:
            named clients, or a validation part of the data.
        share: of the run's rounds, after which the candidates are compared.
    """

    draws: Count = 1
    share: PositiveShare = 1.0

    def __post_init__(self) -> None:
        require_allowed(self)


def choose_recipe(chosen: Component, describe: Callable[[str], Config]) -> tuple[str, str]:
    """Return the candidate with the highest mean on validation data, by `run.select_by`, and why it is that.

    Args:
        chosen: `auto`, with its options.
        describe: returns the run that is asked for, with a recipe in place of `auto`.
    """
    choice = make(Choice, chosen.options, "method")
    configs = {name: _shorten(describe(name), choice.share) for name in CANDIDATES}
    first = configs[CANDIDATES[0]]
    draws = choice.draws if first.data.draws_validation else 1
    totals = dict.fromkeys(CANDIDATES, 0.0)
    for draw in range(draws):
        drawn = {name: _with_draw(config, draw) for name, config in configs.items()}
        data = run_data(drawn[CANDIDATES[0]])  # candidates differ in the method, the loss and the batches only
        if data.val is None:
            raise ValueError("method = 'auto' chooses on validation data: give val_fraction, or val_clients")
        if draw == 0:
            LOG.info(f"auto: {draws * len(configs)} runs of {first.run.rounds} rounds come before the run itself")
        scores = _validate(drawn, data)
        totals = {name: total + scores[name] for name, total in totals.items()}
        if draws > 1:
            LOG.info(f"auto: draw {draw + 1} of {draws} of validation data: {_format_scores(scores)}")
    best = max(totals, key=lambda name: totals[name])
    means = _format_scores({name: total / draws for name, total in totals.items()})
    metric = first.run.select_by.replace("_", " ")
    why = f"{metric} on validation data after {first.run.rounds} rounds: {means}"
    LOG.info(f"auto takes {best}: {why}")
    return best, why


def _shorten(config: Config, share: float) -> Config:
    rounds = max(1, round(share * config.run.rounds))
    return replace(config, run=replace(config.run, rounds=rounds, eval_every=rounds, patience=0, track=()))


def _with_draw(config: Config, draw: int) -> Config:
    return replace(config, data=replace(config.data, val_draw=draw))


def _validate(configs: Mapping[str, Config], data: RunData) -> dict[str, float]:
    """Return what each candidate reaches on the validation part of these data; 0 if it diverges."""
    scores = {}
    for name, config in configs.items():
        try:
            summary = start(config, None, resume=False, data=data).summary
            score = None if summary is None else summary.number(VALIDATION_METRICS[config.run.select_by])
        except DivergedError:
            score = 0.0
        scores[name] = score or 0.0
    return scores


def _format_scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
