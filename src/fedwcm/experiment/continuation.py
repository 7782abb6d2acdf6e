"""Whether a folder's run can go on: with the same configuration, or with more rounds or patience."""

import math
from collections.abc import Mapping
from dataclasses import replace

from fedwcm.config.schema import Config, RunOptions
from fedwcm.config.settings import differences, from_settings
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.experiment.build import Experiment
from fedwcm.experiment.checkpoint import settings_of
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.models import WEIGHTS
from fedwcm.experiment.records import PartitionRecord


def require_resumable(folder: RunFolder, wanted: Config, experiment: Experiment) -> None:
    """Raise unless the folder's run is the wanted one on the same data, or becomes it by going on."""
    held = _held(folder)
    before, after = held.run.rounds, wanted.run.rounds
    changed = differences(_lengthened(held, wanted), wanted)
    if changed:
        raise ValueError(f"{folder.path} cannot be resumed with another configuration: " + "; ".join(changed))
    split = folder.partition()
    if split is not None and split.digest not in (None, experiment.data_digest):
        data = wanted.data.dataset
        raise ValueError(f"{folder.path} cannot be resumed: {data} has changed since; choose another folder")
    edited = [name for name, digest in _sources(folder).items() if experiment.sources.get(name, digest) != digest]
    if edited:
        raise ValueError(
            f"{folder.path} cannot be resumed: the code of {', '.join(edited)} has changed since; "
            "choose another folder"
        )
    trainer = experiment.rounds.trainer
    reason = extension_problem(wanted, trainer.method, trainer.loss, before) if after > before else None
    if reason:
        raise ValueError(
            f"{folder.path} cannot go on from {before} to {after} rounds: {reason}, so a run of {after} rounds "
            "would have begun differently; choose another folder"
        )


def _sources(folder: RunFolder) -> Mapping[str, str]:
    """The digests of the code that the folder's run began with."""
    return next((record.sources for record in folder.environments()), {})


def require_same_partition(folder: RunFolder, split: PartitionRecord) -> None:
    """Raise if the clients of the folder's run had other samples: a function that divides them may change."""
    held = folder.partition()
    if held is not None and (held.clients, held.counts) != (split.clients, split.counts):
        raise ValueError(
            f"{folder.path} cannot be resumed: its samples were divided differently among {held.clients} clients, "
            f"now there are {split.clients}; choose another folder"
        )


def partition_of(experiment: Experiment) -> PartitionRecord:
    """Who holds what in this run."""
    counts, classes = experiment.rounds.federation.counts, experiment.facts.classes
    return PartitionRecord.of(counts, classes, experiment.client_names, experiment.data_digest)


def with_first_weights(wanted: Config, folder: RunFolder) -> Config:
    """The configuration with the digest of the weights that the folder's run started from.

    A module that is given again, to resume, may have others: the run goes on from those of its checkpoint.
    """
    first = _held(folder).model.options.get(WEIGHTS)
    if first is None or WEIGHTS not in wanted.model.options:
        return wanted
    return replace(wanted, model=replace(wanted.model, options={**wanted.model.options, WEIGHTS: first}))


def has_finished(folder: RunFolder, options: RunOptions) -> bool:
    """Whether the folder's run has ended, and was to be this long: a longer one goes on."""
    if folder.readable_summary() is None:
        return False
    held = _held(folder).run
    return (held.rounds, held.patience) == (options.rounds, options.patience)


def _held(folder: RunFolder) -> Config:
    """The configuration that the folder's run has had so far: its `config.toml` may have been edited since."""
    settings = settings_of(folder.checkpoints)
    return folder.config() if settings is None else from_settings(settings)


def _lengthened(held: Config, wanted: Config) -> Config:
    """The held configuration with the rounds and the patience that are wanted, where these are more."""
    rounds = max(held.run.rounds, wanted.run.rounds)
    patience = max(held.run.patience, wanted.run.patience, key=lambda evaluations: evaluations or math.inf)
    return replace(held, run=replace(held.run, rounds=rounds, patience=patience))


def extension_problem(config: Config, method: Method, loss: Loss, before: int) -> str | None:
    """Why the first rounds of a run differ from those of a run of `before` rounds; None if they do not."""
    rate, options = config.local, config.run
    if any(rate.at(r, before) != rate.at(r, options.rounds) for r in range(before)):
        return f"local.schedule = {rate.schedule!r} depends on run.rounds"
    for part, name in ((method, f"method {config.method.name!r}"), (loss, f"loss {config.loss.name!r}")):
        if part.depends_on_rounds:
            return f"the {name} depends on run.rounds"
    if before % options.eval_every:
        return f"round {before} was evaluated only because it was the last (run.eval_every = {options.eval_every})"
    return None
