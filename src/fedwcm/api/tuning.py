"""`fedwcm.tune`: search for the best options on validation data, each method with as many trials."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedwcm.api.description import describe_settings, flags_in, method_text
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
from fedwcm.config.flags import refuse_varied
from fedwcm.config.schema import Diagnostic
from fedwcm.jobs.run_lists import method_list, seed_list
from fedwcm.runs.progress import in_notebook
from fedwcm.utils.extras import optional_module

if TYPE_CHECKING:
    from fedwcm.tuning.result import Tuning


def tune(
    methods: Sequence[MethodLike],
    search: Mapping[str, object],
    out: str | Path,
    *,
    seeds: Sequence[int] = (0,),
    trials: int = 20,
    space: str | Path | None = None,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Callable[[str], object] | bool | None = None,
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
) -> "Tuning":
    """Search for the options with the best balanced validation accuracy, each method with as many trials.

    The same call goes on with a search that was stopped; in another process it joins one that is going on. Needs
    Optuna: `pip install 'fedwcm[tune]'`.

    Args:
        methods: methods or recipes, each with options in brackets if need be; or a `Method` that
            can be imported, or its class.
        search: options to search, by keyword or dotted name, with their ranges: `"log:0.003:0.3"`, `"0.05:0.5"`,
            `"int:1:10"`, or a list of values. An option of a method is searched where the method has it.
        out: folder of the search.
        seeds: of the runs of each trial, whose mean balanced accuracy on validation data is its value.
        trials: settings to try of each method.
        space: a TOML file with more options to search.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"method.q": "off"}`.
        progress: whether to say how each trial ended, by default in a notebook only; or a function that is called
            with that sentence.
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
    optional_module("optuna", "tune", "fedwcm.tune")
    from fedwcm.tuning.space import space_from
    from fedwcm.tuning.tune import search_options

    flags = flags_in(locals())
    refuse_varied(search, "the search", settings, flags)
    common = describe_settings(None, config, settings, flags)
    names = method_list([method_text(method) for method in method_list(methods)])  # a class may repeat a name
    ranges, all_seeds = space_from(search, space), seed_list(seeds)
    return search_options(names, ranges, all_seeds, trials, Path(out), common, _say(progress))


def _say(progress: Callable[[str], object] | bool | None) -> Callable[[str], object]:
    shown = in_notebook() if progress is None else progress
    if not isinstance(shown, bool):
        return shown
    stream = sys.stdout if in_notebook() else sys.stderr
    return (lambda text: print(text, file=stream)) if shown else (lambda _: None)
