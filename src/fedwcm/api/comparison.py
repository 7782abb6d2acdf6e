"""`fedwcm.compare`: every method × seed × grid point as a run of its own, then one table and one report."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fedwcm.api.comparison_result import Comparison
from fedwcm.api.description import describe_methods, describe_settings, flags_in
from fedwcm.config.arguments import (
    ClientsLike,
    ConfigLike,
    DataLike,
    LossLike,
    MethodLike,
    ModelLike,
    PartitionLike,
    SamplerLike,
)
from fedwcm.config.flags import option_key, refuse_varied
from fedwcm.config.schema import Diagnostic
from fedwcm.core.checks import require
from fedwcm.jobs.execution import run_all, uses_cluster
from fedwcm.jobs.plan import check, plan
from fedwcm.reports.table_files import csv_table, latex_table
from fedwcm.reports.verdicts import verdict_records
from fedwcm.reports.warnings import equal_labels
from fedwcm.reports.write import report_or_warn
from fedwcm.runs.comparison_folder import ComparisonFolder
from fedwcm.runs.folder import RunFolder
from fedwcm.runs.lock import locked
from fedwcm.runs.progress import Progress, progress_maker
from fedwcm.runs.records import ComparisonIndex


def compare(
    methods: Sequence[MethodLike],
    seeds: Sequence[int],
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[object]] | None = None,
    jobs: int = 1,
    trust: bool = False,
    report: bool = True,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Callable[[], Progress] | bool | None = None,
    dataset: DataLike | None = None,
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    group: str | None = None,
    split: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    impute: Literal["median"] | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    unlabelled: Literal["skip"] | None = None,
    image_size: int | None = None,
    normalize: Literal["auto", "standard", "none"] | Sequence[float] | Sequence[Sequence[float]] | None = None,
    test_fraction: float | None = None,
    test_clients: float | Sequence[str] | Sequence[int] | None = None,
    val_fraction: float | None = None,
    augment: bool | None = None,
    imbalance: float | Literal["none"] | None = None,
    partition: PartitionLike | None = None,
    clients: ClientsLike | None = None,
    beta: float | None = None,
    model: ModelLike | None = None,
    loss: LossLike | None = None,
    sampler: SamplerLike | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    participation: float | None = None,
    rounds: int | None = None,
    eval_every: int | None = None,
    patience: int | None = None,
    device: str | None = None,
    privacy: Literal["none", "he"] | None = None,
    diagnostics: Sequence[Diagnostic] | None = None,
    track: Sequence[str] | None = None,
    backend: Literal["auto", "sequential", "vectorized", "parallel", "ray"] | None = None,
) -> Comparison:
    """Run every method with every seed, and tabulate. Runs that are in `out` already are not repeated.

    All runs are checked before the first starts.

    Args:
        methods: methods or recipes, each with options in brackets if need be, `"package.module:Name"`, or a
            `Method` or its class.
        seeds: one run of each method for each.
        out: folder for the runs, the table and the report.
        grid: values for options, by keyword or dotted name: `{"lr": [0.03, 0.1]}`; every combination is run.
        jobs: runs at a time, each in a process of its own.
        trust: import what a run's folder, given as `config`, names as `package.module:Name`.
        report: write `report.html`, one for all runs, into `out`.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"method.q": "off"}`.
        progress: whether to show how far the runs are, by default in a notebook only; or a function that makes,
            for each run, an object that is called after every round.
        dataset: a named data set, a file, a folder of images or `hub:ID`; or data: `(x, y)`,
            `(x_train, y_train, x_test, y_test)` or a dict of arrays or tensors, a dict of `(x, y)` by `train`,
            `val` and `test`, a list or dict of each client's `(x, y)`, a pandas DataFrame, a
            `torch.utils.data.Dataset`, a Hugging Face `Dataset`, a `fedwcm.Dataset`.
        data_dir: folder in which named data sets are looked for first.
        label: label column of a table or DataFrame.
        client: client column of a table or DataFrame: the natural partition.
        group: column of what must stay together, such as the patient: on one side of every split.
        split: column that says `train`, `val` or `test`.
        features: columns of a table to use, by name or pattern.
        drop: columns of a table to leave out, by name or pattern.
        impute: `median`: fill in missing values, which are refused otherwise.
        encoding: encoding of a text file, such as `latin-1`.
        delimiter: separator of a text file's columns, or `tab`; by default recognised.
        unlabelled: `skip`: leave out rows without a label, which are refused otherwise.
        image_size: side of the square that images are scaled and cut to.
        normalize: `auto`, `standard`, `none`, or `[mean, std]`.
        test_fraction: share held out for testing where the data has no test part; 0.2 by default.
        test_clients: hold out whole clients for testing instead: their share, or their names.
        val_fraction: share of the training data held out for validation, which selects the model that is kept.
        augment: flip and crop images at random.
        imbalance: samples of the rarest class over those of the most frequent, in (0, 1], made by leaving samples
            out; `"none"` for the data as it is. Named data sets have 0.1 by default.
        partition: how samples are divided: a name, `package.module:Name`, a `Partition` or its class.
        clients: number of clients; or the client of every training sample, in the order of the data.
        beta: Dirichlet concentration: smaller is more heterogeneous.
        model: a model's name or `package.module:factory`; an `nn.Module`, which is copied; or what makes one.
        loss: the clients' loss: a name, `package.module:Name`, a `Loss` or its class.
        sampler: how clients draw their batches: a name, `package.module:Name`, a `Sampler` or its class.
        epochs: local epochs per round.
        steps: local steps per round, instead of epochs.
        batch_size: samples in a mini-batch.
        lr: local learning rate.
        participation: share of the clients sampled each round.
        rounds: communication rounds.
        eval_every: rounds between evaluations.
        patience: evaluations in a row without a better one on the validation data after which a run stops.
        device: `auto`, `cpu`, `cuda`, `mps`, …
        privacy: `none`, or `he`: gather the class distribution under homomorphic encryption.
        diagnostics: what else to measure at every evaluation: `concentration`, `train_set`, `clients`.
        track: experiment trackers to log to: `tensorboard`, `mlflow`, `wandb`.
        backend: `auto`, `sequential`, `vectorized`, `parallel` or `ray`.
    """
    require(jobs >= 1, "jobs", jobs, "at least 1")
    flags = flags_in(locals())
    refuse_varied(grid or {}, "the grid", settings, flags)
    common = describe_settings(None, config, settings, flags, trust=trust)
    planned_runs = plan(describe_methods(methods), seeds, grid or {}, common, Path(out))
    on_cluster = any(uses_cluster(planned) for planned in planned_runs)
    require(jobs == 1 or not on_cluster, "jobs", jobs, "1 with the backend 'ray': run.workers says how many")
    round_size = max((found.round_size for found in check(planned_runs).values()), default=0)
    if RunFolder(Path(out)).holds_run:
        raise ValueError(f"{out} holds a single run: choose another folder for a comparison")
    with locked(Path(out)):
        folder = ComparisonFolder(Path(out))
        labels = {planned.folder.name: planned.label for planned in planned_runs}
        most_jobs = max(jobs, folder.index().jobs or 1)  # some of the runs may be there from then
        index = ComparisonIndex(labels=labels, jobs=most_jobs, grid=tuple(map(option_key, grid or {})))
        _warn_of_others(folder, index)
        folder.write_index(index)
        run_all(planned_runs, jobs, progress_maker(progress), round_size)
        return collect(index, Path(out), report)


def _warn_of_others(folder: ComparisonFolder, index: ComparisonIndex) -> None:
    """Warn if the folder has runs of other methods or seeds, whose options nobody has compared with these."""
    others = sorted(folder.index().labels.keys() - index.labels.keys())
    if others:
        text = f"{len(others)} other runs in {folder.path} stay there and are not in its table any more"
        warnings.warn(f"{text}: {others[0]}, …; name all methods and seeds to see them together", stacklevel=3)


def collect(index: ComparisonIndex, out: Path, report: bool) -> Comparison:
    """Tabulate the finished runs, judge them, and write the report."""
    comparison = Comparison(out)
    for text in equal_labels(comparison.groups):
        warnings.warn(text, stacklevel=3)
    folder, verdicts = ComparisonFolder(out), verdict_records(comparison.groups)
    folder.write_index(replace(index, outcomes=folder.outcomes(index.labels), verdicts=tuple(verdicts)))
    joined = "\n\n".join(comparison.headline)
    text = f"# Comparison\n\n{joined}\n\n{comparison.markdown}\n"
    folder.write_tables(csv_table(comparison.rows), latex_table(comparison.rows), text)
    comparison.report = report_or_warn(out) if report else None
    return comparison
