"""Start one run, in memory or in its folder, or go on with the one that is there."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace

from fedwcm.config.schema import Config, RunOptions
from fedwcm.config.settings import differences, from_settings
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.core.torch_rng import default_torch_modes, one_thread_at_a_time
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.build import Experiment, RunData, build
from fedwcm.experiment.checkpoint import settings_of
from fedwcm.experiment.environment import describe_environment, now
from fedwcm.experiment.evaluator import find_metrics
from fedwcm.experiment.folder import ComparisonFolder, RunFolder
from fedwcm.experiment.lock import locked
from fedwcm.experiment.models import WEIGHTS
from fedwcm.experiment.progress import Progress
from fedwcm.experiment.records import EnvironmentRecord, PartitionRecord
from fedwcm.experiment.run import Run
from fedwcm.experiment.runner import Runner
from fedwcm.experiment.trackers.tracking import check_trackers

Report = Callable[[Run], object]


def start(
    config: Config,
    folder: RunFolder | None,
    *,
    resume: bool,
    report: Report | None = None,
    progress: Progress | None = None,
    data: RunData | None = None,
    jobs: int = 1,
) -> Run:
    """Run what is asked for to its end, holding the lock on its folder.

    Args:
        config: the run.
        folder: where it is saved; None keeps it in memory.
        resume: go on with the run that the folder holds, if any; otherwise such a folder is refused.
        report: writes the report into the folder at the end, even if the run diverged.
        progress: is told of every round.
        data: its samples, if they are there already.
        jobs: runs of its comparison that go on at a time.

    Raises:
        DivergedError: the run diverged, now or before.
        ValueError: the folder holds something else.
    """
    with default_torch_modes(), nullcontext() if folder is None else _own_folder(folder):
        holds_run = folder is not None and folder.holds_run
        if folder is not None and holds_run and not resume:
            raise ValueError(f"{folder.path} holds a run already: resume it, or choose another folder")
        check_trackers(config.run.track, None if folder is None else folder.path)
        find_metrics(config.run.metrics)
        with one_thread_at_a_time():
            experiment = build(config, data)
        if folder is None:
            return Runner(experiment, None, progress).run()
        if holds_run:
            experiment = replace(experiment, config=with_first_weights(experiment.config, folder))
            if _already_finished(folder, experiment):
                run = Run(folder)
                if run.diverged:
                    raise DivergedError(run.diverged)
                return run
        partition, environments = partition_of(experiment), _environments(folder, experiment, jobs)
        folder.write_partition(partition)
        folder.write_environments(environments)
        try:
            run = Runner(experiment, folder, progress).run().copy_with(partition=partition)
        except DivergedError:
            _end(Run(folder), environments, report)
            raise
        return _end(run, environments, report)


def _end(run: Run, environments: list[EnvironmentRecord], report: Report | None) -> Run:
    """Note when the run ended, and write its report."""
    ended = replace(environments[-1], ended=now())
    run.folder.write_environments([*environments[:-1], ended])
    run = run.copy_with(environment=ended)
    if report is not None:
        report(run)
    return run


@contextmanager
def _own_folder(folder: RunFolder) -> Iterator[None]:
    """Lock a folder for a run; one of a comparison or a search is refused."""
    if ComparisonFolder(folder.path).index_file.exists():
        raise ValueError(f"{folder.path} holds a comparison: choose another folder for a single run")
    folder.refuse_search()
    with locked(folder.path):
        yield


def _already_finished(folder: RunFolder, experiment: Experiment) -> bool:
    """Return whether the folder's run is finished; raises if it is another one than is to be resumed.

    Unless it goes on, the experiment's backend is closed.
    """
    with ExitStack() as ending:
        ending.callback(experiment.rounds.backend.close)
        require_resumable(folder, experiment.config, experiment)
        require_same_partition(folder, partition_of(experiment))
        if not has_finished(folder, experiment.config.run):
            ending.pop_all()
            return False
    return True


def _environments(folder: RunFolder, experiment: Experiment, jobs: int) -> list[EnvironmentRecord]:
    """Return who worked on the run, this process last; warn if it may round differently."""
    before = folder.environments()
    data = experiment.data_digest or experiment.facts.fingerprint
    here = describe_environment(data, experiment.sources, jobs)
    for difference in here.differences(before[-1]) if before and folder.has_metrics else ():
        warnings.warn(f"{folder.path} goes on with {difference}: its digits may differ from then on", stacklevel=3)
    return [*before, here]


def require_resumable(folder: RunFolder, wanted: Config, experiment: Experiment) -> None:
    """Raise unless the folder's run is the wanted one on the same data, or becomes it by going on."""
    config = _read_config(folder)
    before, after = config.run.rounds, wanted.run.rounds
    changed = differences(_lengthen(config, wanted), wanted)
    if changed:
        raise ValueError(f"{folder.path} cannot be resumed with another configuration: " + "; ".join(changed))
    split = folder.partition()
    if split is not None and split.digest not in (None, experiment.data_digest):
        data = wanted.data.dataset
        raise ValueError(f"{folder.path} cannot be resumed: {data} has changed since; choose another folder")
    began_with: Mapping[str, str] = next((record.sources for record in folder.environments()), {})
    edited = [name for name, digest in began_with.items() if experiment.sources.get(name, digest) != digest]
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


def require_same_partition(folder: RunFolder, split: PartitionRecord) -> None:
    """Raise if the clients of the folder's run had other samples: a function that divides them may change."""
    before = folder.partition()
    if before is not None and (before.clients, before.counts) != (split.clients, split.counts):
        raise ValueError(
            f"{folder.path} cannot be resumed: its samples were divided differently among "
            f"{before.clients} clients, now there are {split.clients}; choose another folder"
        )


def partition_of(experiment: Experiment) -> PartitionRecord:
    """Return who holds what in this run."""
    counts, classes = experiment.rounds.federation.counts, experiment.facts.classes
    record = PartitionRecord.of(counts, classes, experiment.client_names, experiment.data_digest)
    if (own := experiment.rounds.own_data) is None:
        return record
    return replace(record, server=tuple(own.labels.bincount(minlength=len(classes)).tolist()))


def with_first_weights(wanted: Config, folder: RunFolder) -> Config:
    """Return the configuration with the digest of the weights that the folder's run started from.

    A module that is given again, to resume, may have others: the run goes on from those of its checkpoint.
    """
    first = _read_config(folder).model.options.get(WEIGHTS)
    if first is None or WEIGHTS not in wanted.model.options:
        return wanted
    return replace(wanted, model=replace(wanted.model, options={**wanted.model.options, WEIGHTS: first}))


def has_finished(folder: RunFolder, options: RunOptions) -> bool:
    """Return whether the folder's run has ended, and was to be this long: a longer one goes on."""
    if folder.readable_summary() is None:
        return False
    run = _read_config(folder).run
    return (run.rounds, run.patience) == (options.rounds, options.patience)


def _read_config(folder: RunFolder) -> Config:
    """Return the configuration of the folder's run so far: `config.toml` may have been edited since."""
    settings = settings_of(folder.checkpoints)
    return folder.config() if settings is None else from_settings(settings)


def _lengthen(recorded: Config, wanted: Config) -> Config:
    """Return the recorded configuration with the rounds and the patience that are wanted, where these are more."""
    rounds = max(recorded.run.rounds, wanted.run.rounds)
    patience = max(recorded.run.patience, wanted.run.patience, key=lambda evaluations: evaluations or math.inf)
    return replace(recorded, run=replace(recorded.run, rounds=rounds, patience=patience))


def extension_problem(config: Config, method: Method, loss: Loss, before: int) -> str | None:
    """Return why the first rounds of a run differ from those of a run of `before` rounds; None if they do not."""
    rate, options = config.local, config.run
    if any(rate.at(r, before) != rate.at(r, options.rounds) for r in range(before)):
        return f"local.schedule = {rate.schedule!r} depends on run.rounds"
    for part, name in ((method, f"method {config.method.name!r}"), (loss, f"loss {config.loss.name!r}")):
        if part.depends_on_rounds:
            return f"the {name} depends on run.rounds"
    if before % options.eval_every:
        return f"round {before} was evaluated only because it was the last (run.eval_every = {options.eval_every})"
    return None
