"""`fedwcm.compare`: every method × seed × grid point as a run of its own, then one table and one report."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Unpack, overload

from fedwcm.api.arguments import ConfigLike, MethodsLike
from fedwcm.api.comparison_result import Comparison
from fedwcm.api.description import describe_methods, describe_settings
from fedwcm.api.keywords import CompareKeywords
from fedwcm.config.flags import option_key, refuse_varied
from fedwcm.core.checks import require
from fedwcm.engine.backends.plan import threads
from fedwcm.experiment.folder import ComparisonFolder, RunFolder
from fedwcm.experiment.lock import locked
from fedwcm.experiment.progress import Progress, progress_maker
from fedwcm.experiment.records import OUTCOMES, ComparisonIndex
from fedwcm.experiment.run import Run
from fedwcm.reports.table_files import csv_table, latex_table
from fedwcm.reports.verdicts import verdict_records
from fedwcm.reports.warnings import equal_labels
from fedwcm.reports.write import report_or_warn
from fedwcm.sweeps.estimate import Forecast, forecast
from fedwcm.sweeps.execution import run_all, uses_cluster
from fedwcm.sweeps.plan import SharedData, check, plan


@overload
def compare(
    methods: MethodsLike,
    seeds: Sequence[int],
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[object]] | None = None,
    jobs: int = 1,
    trust: bool = False,
    report: bool = True,
    dry_run: Literal[False] = False,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Callable[[], Progress] | bool | None = None,
    **options: Unpack[CompareKeywords],
) -> Comparison: ...
@overload
def compare(
    methods: MethodsLike,
    seeds: Sequence[int],
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[object]] | None = None,
    jobs: int = 1,
    trust: bool = False,
    dry_run: Literal[True],
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    **options: Unpack[CompareKeywords],
) -> Forecast: ...
def compare(
    methods: MethodsLike,
    seeds: Sequence[int],
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[object]] | None = None,
    jobs: int = 1,
    trust: bool = False,
    report: bool = True,
    dry_run: bool = False,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Callable[[], Progress] | bool | None = None,
    **options: Unpack[CompareKeywords],
) -> Comparison | Forecast:
    """Run every method with every seed, and tabulate. Runs that are in `out` already are not repeated.

    All runs are checked before the first starts.

    Args:
        methods: methods or recipes, each with options in brackets if need be, `"package.module:Name"`, or a
            `Method` or its class; or a dict of these by the names that the table shows, where a dict gives a
            method options of its own: `{"Ours": {"method": "fedavg", "loss": MyLoss(), "lr": 0.1}}`.
        seeds: one run of each method for each.
        out: folder for the runs, the table and the report.
        grid: values for options, by keyword or dotted name: `{"lr": [0.03, 0.1]}`; every combination is run.
        jobs: runs at a time, each in a process of its own.
        trust: import what a run's folder, given as `config`, names as `package.module:Name`.
        report: write `report.html`, one for all runs, into `out`.
        dry_run: check the runs, and return what time and memory they are expected to take; nothing is written.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"method.q": "off"}`.
        progress: whether to show how far the runs are, by default in a notebook only; or a function that makes,
            for each run, an object that is called after every round.
        options: common options, as in `fedwcm.run`.
    """
    require(jobs >= 1, "jobs", jobs, "at least 1")
    refuse_varied(grid or {}, "the grid", settings, options)
    common = describe_settings(None, config, settings, options, trust=trust)
    planned_runs = plan(describe_methods(methods), seeds, grid or {}, common, Path(out))
    if dry_run:
        with threads(1):  # trials are forked: with several threads here, those of a trial would wait for ever
            check(planned_runs)
        return forecast(planned_runs, jobs)
    on_cluster = any(uses_cluster(planned) for planned in planned_runs)
    require(jobs == 1 or not on_cluster, "jobs", jobs, "1 with the backend 'ray': run.workers says how many")
    data = SharedData()
    round_size = max((preflight.round_size for preflight in check(planned_runs, data).values()), default=0)
    if RunFolder(Path(out)).holds_run:
        raise ValueError(f"{out} holds a single run: choose another folder for a comparison")
    with locked(Path(out)):
        folder = ComparisonFolder(Path(out))
        labels, before = {planned.folder.name: planned.label for planned in planned_runs}, folder.index()
        most_jobs = max(jobs, before.jobs or 1)  # some of the runs may be there from then
        index = ComparisonIndex(labels=labels, jobs=most_jobs, grid=tuple(map(option_key, grid or {})))
        _warn_of_others(folder, sorted(before.labels.keys() - labels.keys()))
        folder.write_index(index)
        runs = run_all(planned_runs, jobs, progress_maker(progress), round_size, data)
        return collect([run.copy_with(index=index) for run in runs], index, Path(out), report)


def _warn_of_others(folder: ComparisonFolder, others: Sequence[str]) -> None:
    """Warn if the folder has runs of other methods or seeds, whose options nobody has compared with these."""
    if others:
        text = f"{len(others)} other runs in {folder.path} stay there and are not in its table any more"
        warnings.warn(f"{text}: {others[0]}, …; name all methods and seeds to see them together", stacklevel=3)


def collect(runs: Sequence[Run], index: ComparisonIndex, out: Path, report: bool) -> Comparison:
    """Tabulate the finished runs, judge them, and write the report."""
    comparison = Comparison(out, runs)
    for text in equal_labels(comparison.groups):
        warnings.warn(text, stacklevel=3)
    folder, verdicts = ComparisonFolder(out), verdict_records(comparison.groups)
    outcomes = {
        run.path.name: {key: value for key in OUTCOMES if (value := run.outcome.number(key)) is not None}
        for run in runs
    }
    folder.write_index(replace(index, outcomes=outcomes, verdicts=tuple(verdicts)))
    joined = "\n\n".join(line for text in comparison.headline for line in text.splitlines())
    text = f"# Comparison\n\n{joined}\n\n{comparison.markdown}\n"
    folder.write_tables(csv_table(comparison.rows), latex_table(comparison.rows), text)
    comparison.report = report_or_warn(out, runs) if report else None
    return comparison
