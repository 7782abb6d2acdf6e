"""`fedwcm.run`: train one method on one division of a data set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from fedwcm.api.continuation import is_finished, refuse_another
from fedwcm.api.request import Request, flags_in, request, resumed
from fedwcm.api.result import Result, read_result
from fedwcm.api.types import (
    ClientsLike,
    ConfigLike,
    DataLike,
    LossLike,
    MethodLike,
    ModelLike,
    PartitionLike,
    SamplerLike,
)
from fedwcm.config.build import Experiment, build
from fedwcm.config.schema import Diagnostic
from fedwcm.engine.rounds import DivergedError
from fedwcm.reports.write import report_or_warn
from fedwcm.runs.comparison_folder import ComparisonFolder
from fedwcm.runs.folder import RunFolder
from fedwcm.runs.lock import locked
from fedwcm.runs.progress import Progress, Silent, chosen_progress
from fedwcm.runs.records import SplitRecord
from fedwcm.runs.runner import Runner, RunResult
from fedwcm.runs.trackers.tracking import check_trackers


def run(
    method: MethodLike | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    trust: bool = False,
    report: bool = True,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Progress | bool | None = None,
    dataset: DataLike | None = None,
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    split: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    impute: Literal["median"] | None = None,
    encoding: str | None = None,
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
    seed: int | None = None,
    eval_every: int | None = None,
    patience: int | None = None,
    device: str | None = None,
    privacy: Literal["none", "he"] | None = None,
    diagnostics: Sequence[Diagnostic] | None = None,
    track: Sequence[str] | None = None,
    backend: Literal["auto", "sequential", "vectorized", "parallel", "ray"] | None = None,
) -> Result:
    """Train one method on one division of a data set.

    Names and objects may be mixed freely. Options that are not given have the defaults of
    `fedwcm.config.schema`.

    Args:
        method: a method or recipe, with options in brackets if need be: `"fedcm[alpha=0.2]"`;
            `"package.module:Name"`; or a `Method` or its class.
        out: folder for the configuration, metrics, checkpoints and model; nothing is written without one.
        resume: go on from the newest checkpoint in `out`, with the options of the run there. Objects that the
            configuration only describes must be passed again.
        trust: import what the folder of a run, resumed or given as `config`, names as `package.module:Name`.
        report: write `report.html` into `out` at the end.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"method.q": "off"}`.
        progress: whether to show how far the run is, by default in a notebook only; or an object that is
            called after every round.
        dataset: a named data set, a file, a folder of images or `hub:ID`; or data: `(x, y)`,
            `(x_train, y_train, x_test, y_test)` or a dict of arrays or tensors, a list of each client's `(x, y)`,
            a pandas DataFrame, a `torch.utils.data.Dataset`, a Hugging Face `Dataset`, a `fedwcm.Dataset`.
        data_dir: folder in which named data sets are looked for first.
        label: label column of a table or DataFrame.
        client: client column of a table or DataFrame: the natural partition.
        split: column that says `train`, `val` or `test`.
        features: columns of a table to use, by name or pattern.
        drop: columns of a table to leave out, by name or pattern.
        impute: `median`: fill in missing values, which are refused otherwise.
        encoding: encoding of a text file, such as `latin-1`.
        image_size: side of the square that images are scaled and cut to.
        normalize: `auto`, `standard`, `none`, or `[mean, std]`.
        test_fraction: share held out for testing where the data has no test part; 0.2 by default.
        test_clients: hold out whole clients for testing instead: their share, or their names.
        val_fraction: share of the training data held out for validation, which selects the model that is kept.
        augment: flip and crop images at random.
        imbalance: samples of the rarest class over those of the most frequent, in (0, 1], made by leaving samples
            out; `"none"` for the data as it is. Named data sets have 0.1 by default.
        partition: how samples are divided among clients: a name or a `Partition`.
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
        seed: seed of all randomness.
        eval_every: rounds between evaluations.
        patience: evaluations in a row without a better one on the validation data after which a run stops.
        device: `auto`, `cpu`, `cuda`, `mps`, …
        privacy: `none`, or `he`: gather the class distribution under homomorphic encryption.
        diagnostics: what else to measure at every evaluation: `concentration`, `train_set`, `clients`.
        track: experiment trackers to log to: `tensorboard`, `mlflow`, `wandb`.
        backend: `auto`, `sequential`, `vectorized`, `parallel` or `ray`.
    """
    asked = request(method, config, settings, flags_in(locals()), trust=trust)
    if resume and out is not None and RunFolder(Path(out)).holds_run:
        asked = resumed(asked, RunFolder(Path(out)), trust)
    return start(asked, out=out, resume=resume, report=report, progress=chosen_progress(progress))


def start(
    asked: Request, *, out: str | Path | None, resume: bool, report: bool, progress: Progress | None = None
) -> Result:
    """Start or resume the requested run, holding the lock on its folder."""
    if out is None:
        return _start(asked, None, resume, report, progress or Silent())
    if ComparisonFolder(Path(out)).index_file.exists():
        raise ValueError(f"{out} holds a comparison: choose another folder for a single run")
    RunFolder(Path(out)).refuse_search()
    with locked(Path(out)):
        return _start(asked, RunFolder(Path(out)), resume, report, progress or Silent())


def _start(asked: Request, folder: RunFolder | None, resume: bool, report: bool, progress: Progress) -> Result:
    held = folder if folder is not None and folder.holds_run else None
    if held is not None and not resume:
        raise ValueError(f"{held.path} holds a run already: resume it, or choose another folder")
    config = asked.config
    check_trackers(config.run.track, None if folder is None else folder.path)
    experiment = build(config, asked.objects, trusted=asked.trusted)
    if held is not None and _nothing_left(held, experiment):
        return _finished(held, asked)
    finished = _played(experiment, folder, progress, report)
    module = experiment.network.module.eval()
    return Result(
        experiment.config, finished.history, finished.summary, module, None if folder is None else folder.path
    )


def _nothing_left(folder: RunFolder, experiment: Experiment) -> bool:
    """Whether the folder's run came to its end; raises if it was another one than is to be resumed."""
    try:
        refuse_another(folder, experiment.config, experiment.rounds.trainer.loss, experiment.data_digest)
    except ValueError:
        experiment.rounds.backend.close()
        raise
    if is_finished(folder, experiment):
        experiment.rounds.backend.close()
        return True
    folder.summary_file.unlink(missing_ok=True)  # of fewer rounds: the run is not finished any more
    return False


def _played(experiment: Experiment, folder: RunFolder | None, progress: Progress, report: bool) -> RunResult:
    """Run to the end, in memory or in a folder; a run in a folder gets its report even if it diverged."""
    if folder is not None:
        counts = experiment.rounds.federation.counts
        names, digest = experiment.client_names, experiment.data_digest
        folder.write_split(SplitRecord.of(counts, experiment.facts.classes, names, digest))
    try:
        return Runner(experiment, folder, progress).run()
    finally:
        if folder is not None and folder.finished and report:
            report_or_warn(folder.path)


def _finished(folder: RunFolder, asked: Request) -> Result:
    result = read_result(folder, asked.objects.model, asked.trusted)
    if result.summary.diverged:
        raise DivergedError(result.summary.diverged)
    return result
