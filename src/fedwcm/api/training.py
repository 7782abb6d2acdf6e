"""`fedwcm.run`: train one method on one division of a data set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from fedwcm.api.description import describe_run, flags_in
from fedwcm.api.result import Result, read_result
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
from fedwcm.config.schema import Diagnostic
from fedwcm.jobs.start import start
from fedwcm.runs.folder import RunFolder
from fedwcm.runs.progress import Progress, chosen_progress


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
        seed: seed of all randomness.
        eval_every: rounds between evaluations.
        patience: evaluations in a row without a better one on the validation data after which a run stops.
        device: `auto`, `cpu`, `cuda`, `mps`, …
        privacy: `none`, or `he`: gather the class distribution under homomorphic encryption.
        diagnostics: what else to measure at every evaluation: `concentration`, `train_set`, `clients`.
        track: experiment trackers to log to: `tensorboard`, `mlflow`, `wandb`.
        backend: `auto`, `sequential`, `vectorized`, `parallel` or `ray`.
    """
    flags, folder = flags_in(locals()), None if out is None else RunFolder(Path(out))
    described = describe_run(method, config, settings, flags, trust=trust, resume=resume, folder=folder)
    ended = start(described, folder, resume=resume, report=report, progress=chosen_progress(progress))
    if ended.module is None:
        assert folder is not None  # where the run had ended before
        return read_result(folder, described.model.value, described.model.trusted)
    path = None if folder is None else folder.path
    return Result(ended.config, ended.history, ended.summary, ended.module, path)
