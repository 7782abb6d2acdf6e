"""Start or resume one run, in memory or in its folder."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

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
from fedwcm.experiment.records import RoundRecord, Summary
from fedwcm.experiment.runner import Runner, RunResult
from fedwcm.experiment.trackers.tracking import check_trackers

Report = Callable[[Path], object]


@dataclass(frozen=True, eq=False)
class EndedRun:
    """A run that has come to its end.

    `module` is its model; None if the run had ended before, and the model is in its folder only.
    """

    config: Config
    history: list[RoundRecord]
    summary: Summary
    module: nn.Module | None


@default_torch_modes()
def start(
    config: Config,
    folder: RunFolder | None,
    *,
    resume: bool,
    report: Report | None = None,
    progress: Progress | None = None,
) -> EndedRun:
    """Run what is asked for to its end, holding the lock on its folder.

    Args:
        config: the run.
        folder: where it is saved; None keeps it in memory.
        resume: go on with the run that the folder holds, if any; otherwise such a folder is refused.
        report: writes the report into the folder at the end.
        progress: is told of every round.

    Raises:
        DivergedError: the run diverged, now or before.
        ValueError: the folder holds something else.
    """
    if folder is None:
        return _start(config, None, resume, report, progress or Silent())
    if ComparisonFolder(folder.path).index_file.exists():
        raise ValueError(f"{folder.path} holds a comparison: choose another folder for a single run")
    folder.refuse_search()
    with locked(folder.path):
        return _start(config, folder, resume, report, progress or Silent())


def _start(
    config: Config, folder: RunFolder | None, resume: bool, report: Report | None, progress: Progress
) -> EndedRun:
    held = folder if folder is not None and folder.holds_run else None
    if held is not None and not resume:
        raise ValueError(f"{held.path} holds a run already: resume it, or choose another folder")
    check_trackers(config.run.track, None if folder is None else folder.path)
    experiment = build(config)
    if held is not None:
        experiment = replace(experiment, config=with_first_weights(experiment.config, held))
        if _already_finished(held, experiment):
            return _ended_before(held)
    finished = _run(experiment, folder, progress, report)
    module = experiment.predictor
    return EndedRun(experiment.config, finished.history, finished.summary, module)


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


def _run(experiment: Experiment, folder: RunFolder | None, progress: Progress, report: Report | None) -> RunResult:
    """Run to the end, in memory or in a folder; a run in a folder gets its report even if it diverged."""
    if folder is not None:
        folder.write_partition(partition_of(experiment))
        _note_environment(folder, experiment)
    try:
        return Runner(experiment, folder, progress).run()
    finally:
        if folder is not None and folder.finished:
            *before, last = folder.environments()
            folder.write_environments([*before, replace(last, ended=now())])
            if report is not None:
                report(folder.path)


def _note_environment(folder: RunFolder, experiment: Experiment) -> None:
    """Add this process to those that worked on the run; one that may round differently is a warning."""
    before = folder.environments()
    here = describe_environment(experiment.data_digest, experiment.sources)
    for difference in here.differences(before[-1]) if before and folder.has_metrics else ():
        warnings.warn(f"{folder.path} goes on with {difference}: its digits may differ from then on", stacklevel=2)
    folder.write_environments([*before, here])


def _ended_before(folder: RunFolder) -> EndedRun:
    summary = folder.summary()
    if summary.diverged:
        raise DivergedError(summary.diverged)
    return EndedRun(folder.config(), folder.metrics(), summary, None)
