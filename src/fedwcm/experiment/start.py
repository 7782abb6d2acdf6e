"""Start or resume one run, in memory or in its folder."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from fedwcm.config.schema import Config
from fedwcm.core.torch_rng import default_torch_modes
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.build import Experiment, build
from fedwcm.experiment.comparison_folder import ComparisonFolder
from fedwcm.experiment.continuation import (
    has_finished,
    partition_of,
    require_resumable,
    require_same_partition,
    with_first_weights,
)
from fedwcm.experiment.environment import describe_environment, now
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.lock import locked
from fedwcm.experiment.progress import Progress, Silent
from fedwcm.experiment.records import EnvironmentRecord
from fedwcm.experiment.run import Run
from fedwcm.experiment.run_data import RunData
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
) -> Run:
    """Run what is asked for to its end, holding the lock on its folder.

    Args:
        config: the run.
        folder: where it is saved; None keeps it in memory.
        resume: go on with the run that the folder holds, if any; otherwise such a folder is refused.
        report: writes the report into the folder at the end, even if the run diverged.
        progress: is told of every round.
        data: its samples, if they are there already.

    Raises:
        DivergedError: the run diverged, now or before.
        ValueError: the folder holds something else.
    """
    with default_torch_modes(), nullcontext() if folder is None else _own_folder(folder):
        is_held = folder is not None and folder.holds_run
        if folder is not None and is_held and not resume:
            raise ValueError(f"{folder.path} holds a run already: resume it, or choose another folder")
        check_trackers(config.run.track, None if folder is None else folder.path)
        experiment = build(config, data)
        if folder is None:
            return Runner(experiment, None, progress or Silent()).run()
        if is_held:
            experiment = replace(experiment, config=with_first_weights(experiment.config, folder))
            if _already_finished(folder, experiment):
                return _finished_run(folder)
        partition, environments = partition_of(experiment), _environments(folder, experiment)
        folder.write_partition(partition)
        folder.write_environments(environments)
        try:
            run = Runner(experiment, folder, progress or Silent()).run().altered(partition=partition)
        except DivergedError:
            _end(Run(folder), environments, report)
            raise
        return _end(run, environments, report)


def _end(run: Run, environments: list[EnvironmentRecord], report: Report | None) -> Run:
    """Note when the run ended, and write its report."""
    ended = replace(environments[-1], ended=now())
    run.folder.write_environments([*environments[:-1], ended])
    run = run.altered(environment=ended)
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
    """Whether the folder's run is finished; raises if it is another one than is to be resumed.

    Unless it goes on, the experiment's backend is closed.
    """
    try:
        require_resumable(folder, experiment.config, experiment)
        require_same_partition(folder, partition_of(experiment))
    except ValueError:
        experiment.rounds.backend.close()
        raise
    if has_finished(folder, experiment.config.run):
        experiment.rounds.backend.close()
        return True
    return False


def _environments(folder: RunFolder, experiment: Experiment) -> list[EnvironmentRecord]:
    """Return who worked on the run, this process last; warn if it may round differently."""
    before = folder.environments()
    here = describe_environment(experiment.data_digest, experiment.sources)
    for difference in here.differences(before[-1]) if before and folder.has_metrics else ():
        warnings.warn(f"{folder.path} goes on with {difference}: its digits may differ from then on", stacklevel=3)
    return [*before, here]


def _finished_run(folder: RunFolder) -> Run:
    run = Run(folder)
    if run.diverged:
        raise DivergedError(run.diverged)
    return run
