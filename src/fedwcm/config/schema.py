"""The configuration of a run: sections of options.

Sections with a `name` choose a component (`method`, `loss`, `sampler`, `model`, `partition`) and hold its options;
the others are dataclasses. Nothing here imports torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require, require_allowed, shorten, unknown
from fedwcm.core.ranges import BelowOne, Count, CountOrZero
from fedwcm.engine.options import (
    Aggregation,
    ClusterOptions,
    LearningRate,
    OptimizerOptions,
    ParticipationOptions,
    ServerOptions,
)
from fedwcm.privacy.options import PrivacyOptions
from fedwcm.utils.field_types import Flagged

Normalize = Literal["auto", "standard", "none"] | tuple[float, ...] | tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which samples to train and test on.

    Args:
        dataset: a name (`fedwcm list datasets`), a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`), a `.npz` file, a
            folder of images or of `.npy` files, or `hub:ID`.
        data_dir: folder to search first for named data sets.
        shared: workers of the `ray` backend read the data themselves, by the same path, instead of being sent it.
        label: label column of a table.
        client: column with the client of each row, which defines the natural partition; for a folder of images,
            `folder` (CLIENT/CLASS/*) or a table with the columns `file` and `client`.
        group: column of what must stay on one side of every split (test, validation), such as the patient; for a
            folder of images, a table with the columns `file` and `group`.
        split: column that contains `train`, `val` or `test`.
        features: names or patterns (`pixel_*`) of the columns to use; by default all.
        drop: names or patterns of columns to leave out.
        impute: `median` fills in missing values, which are an error otherwise (`none`).
        encoding: encoding of a text file, such as `latin-1`; by default utf-8.
        delimiter: separator of a text file's columns, or `tab`; by default recognised.
        unlabelled: `skip` leaves out rows without a label, which are an error otherwise (`none`).
        image_size: side of the square that images are resized to; `none` for unchanged images, all of one size.
        normalize: `standard` (by mean and standard deviation of the training samples), `none`, `[mean, std]`, or
            `auto`: integers stay unchanged for a model with an embedding, everything else is `standard`.
        test_fraction: share of each class held out for testing if the data has no test set.
        test_clients: hold out whole clients for testing instead: their share, or their names. For data with
            clients of its own and no test set.
        val_fraction: share of each class of the training data held out for validation (to select a round or a
            learning rate) if the data has no validation set. With `test_clients`, the share of the clients: see
            `val_clients`.
        val_clients: hold out whole clients for validation instead: their share, or their names. Rows of clients
            that train say little about new ones.
        val_draw: which draw of the validation samples, or clients: 0, 1, 2, … The test set is the same with all.
        server_fraction: share of each class of the training data that the server holds and no client, for methods
            whose server trains (`fedic`); drawn from what the long tail and the validation part leave.
        server_before_tail: draw the server's share before the long tail is cut, so that it has as many of every
            class as the data had.
        imbalance: size of the rarest class over that of the most frequent, obtained by dropping samples; `none`
            keeps the data as it is. `auto` is 0.1 for named data sets and `none` for your own.
        profile: `exponential` or `step` decay of the class sizes.
        n_max: samples of the most frequent class; by default as many as the data allow.
        augment: flip and crop images at random.
        crop_padding: pixels that `augment` adds on every side before it crops.
    """

    dataset: Flagged[str] = "digits"
    data_dir: Flagged[str | None] = None
    shared: bool = False
    label: Flagged[str | None] = None
    client: Flagged[str | None] = None
    group: Flagged[str | None] = None
    split: Flagged[str | None] = None
    features: Flagged[tuple[str, ...]] = ()
    drop: Flagged[tuple[str, ...]] = ()
    impute: Flagged[Literal["median"] | None] = None
    encoding: Flagged[str | None] = None
    delimiter: Flagged[str | None] = None
    unlabelled: Flagged[Literal["skip"] | None] = None
    image_size: Flagged[int | None] = None
    normalize: Flagged[Normalize] = "auto"
    test_fraction: Flagged[float] = 0.2
    test_clients: Flagged[float | tuple[str, ...] | tuple[int, ...] | None] = None
    val_fraction: Flagged[BelowOne] = 0.0
    val_clients: Flagged[float | tuple[str, ...] | tuple[int, ...] | None] = None
    val_draw: CountOrZero = 0
    server_fraction: Flagged[BelowOne] = 0.0
    server_before_tail: bool = False
    imbalance: Flagged[float | Literal["auto", "none"]] = "auto"
    profile: Literal["exponential", "step"] = "exponential"
    n_max: int | None = None
    augment: Flagged[bool] = False
    crop_padding: CountOrZero = 4

    def __post_init__(self) -> None:
        require_allowed(self)
        require(
            self.val_clients is None or not self.val_fraction,
            "val_clients",
            self.val_clients,
            f"none with val_fraction = {self.val_fraction}: clients are held out for validation, or rows of all",
        )
        share = self.val_clients
        require(
            not isinstance(share, float) or 0 < share < 1,
            "val_clients",
            share,
            "a share of the clients above 0 and below 1, or their names (one called 3 as '3,')",
        )
        largest = self.n_max
        require(largest is None or largest <= 10**9, "n_max", largest, "at most 1,000,000,000")
        require(
            isinstance(self.imbalance, str) or 0 < self.imbalance <= 1,
            "imbalance",
            self.imbalance,
            "in (0, 1], auto or none" + _as_ratio(self.imbalance),
        )

    @property
    def validation_clients(self) -> float | tuple[str, ...] | tuple[int, ...] | None:
        """The clients that are held out for validation: also where the test is on whole clients."""
        if self.val_clients is None and self.val_fraction and self.test_clients is not None:
            return self.val_fraction
        return self.val_clients

    @property
    def draws_validation(self) -> bool:
        """Whether samples or clients are drawn for validation, and not named."""
        return bool(self.val_fraction) or isinstance(self.val_clients, float)

    @property
    def title(self) -> str:
        """The name of the data: for an object, its name without the digest."""
        return self.dataset.removeprefix("object:").partition("#")[0]


def _as_ratio(imbalance: object) -> str:
    """Return what to give for a tail of 1 to so many."""
    return (
        f"; for 1:{imbalance:g} give {1 / imbalance:.3g}" if isinstance(imbalance, float) and imbalance > 1 else ""
    )


Diagnostic = Literal["concentration", "train_set", "clients"]
SelectBy = Literal["accuracy", "balanced_accuracy"]


DEFAULT_EPOCHS = 5

MOST = 10**9
"""Epochs, steps and samples of a batch beyond which memory, or 64 bits, would not do."""


@dataclass(frozen=True, kw_only=True)
class LocalOptions(LearningRate, OptimizerOptions):
    """How a client trains. The options of `LearningRate` and `OptimizerOptions` are described there.

    Args:
        epochs: passes over the client's data per round; 5 if `steps` is not given either.
        steps: local steps per round, the same for all clients, instead of `epochs`: a client that has used all of
            its data goes on with another pass.
        batch_size: samples per mini-batch; the last batch of a pass may be smaller.
        drop_last: leave the last batch of a pass out if it is smaller and not the only one (`true`), never
            (`false`), or only if it has one sample and the model's BatchNorm could not train on it (`auto`).
    """

    epochs: Flagged[int | None] = None
    steps: Flagged[int | None] = None
    batch_size: Flagged[int] = 50
    drop_last: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        LearningRate.__post_init__(self)
        OptimizerOptions.__post_init__(self)
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", DEFAULT_EPOCHS)
        for name in ("epochs", "steps", "batch_size"):
            value = getattr(self, name)
            require(value is None or 1 <= value <= MOST, name, value, f"at least 1 and at most {MOST:,}")
        both = self.steps is not None and self.epochs is not None
        require(
            not both, "steps", self.steps, f"none with epochs = {self.epochs}: a client takes one or the other"
        )


def order_shares(
    shares: Mapping[str, float] | Sequence[float], classes: Sequence[str], field: str
) -> tuple[float, ...]:
    """Return the share of each class in the order of the classes, given by name or in this order."""
    if not isinstance(shares, Mapping):
        require(len(shares) == len(classes), field, list(shares), f"one share for each of {shorten(classes)}")
        shares = dict(zip(classes, shares, strict=True))
    for name, share in shares.items():
        if name not in classes:
            raise unknown(f"class in {field}:", name, classes)
        require(0 <= share < float("inf"), f"{field}, class {name!r},", share, "a share from 0")
    missing = [name for name in classes if name not in shares]
    require(not missing, field, dict(shares), f"given for every class, so also for {shorten(missing)}")
    return tuple(shares[name] for name in classes)


@dataclass(frozen=True, kw_only=True)
class RunOptions(ClusterOptions):
    """Length, seed, hardware and output of a run. The options of `ClusterOptions` are described there.

    Args:
        name: name of the run: the method or recipe as it was typed; by default the method's name.
        rounds: communication rounds.
        seed: seed of all randomness of the run.
        eval_every: rounds between evaluations; the last round is always evaluated.
        select_by: metric on the validation data, if there are any, that selects the round whose model is kept:
            `balanced_accuracy`, in which rare classes count as much as frequent ones, or `accuracy`.
        patience: evaluations in a row without a better one on the validation data after which the run stops; 0
            for never.
        checkpoint_every: rounds between checkpoints.
        device: `auto` (a GPU if there is one), `cpu`, `cuda`, `mps`, …
        precision: number format of the clients' forward and backward passes: `fp32`, `bf16`, or `fp16` on a GPU;
            models and all state stay in float32.
        backend: `auto`, `sequential`, `vectorized` (stacked clients), `parallel` (processes) or `ray`.
        workers: processes of the parallel backend, workers of `ray`; 0 for one per core (`ray`: of the cluster).
        shot_groups: which classes have many, medium and few samples: by the `range` of class sizes, cut in three
            on a logarithmic scale, or by cumulative `share` of the samples (75 and 95 %).
        diagnostics: additional measurements at every evaluation: `concentration`, `train_set`, `clients`: their
            accuracy by their classes, where it is not known whose the test samples are.
        metrics: more numbers of every evaluated model: `auc`, `average_precision`, `brier`, `ece` (of each
            class), or `package.module:function`, which is called with a `fedwcm.Evaluated`.
        track: experiment trackers to log to: `tensorboard`, `mlflow`, `wandb`.
        reject_nonfinite: ignore a client whose update contains a NaN or an infinity; `false` lets it end the run.
        profile: record the seconds spent in each phase since the last evaluated round.
        target: the class distribution that the model will meet, by the names of the classes (`ok=0.85,warn=0.15`),
            or one share per class in their order: FedWCM's scores, the loss `prior_ce` and `--mix target` of
            `evaluate`, `predict` and `export` follow it; by default uniform.
    """

    name: str | None = None
    rounds: Flagged[Count] = 100
    seed: Flagged[int] = 0
    eval_every: Flagged[Count] = 1
    select_by: SelectBy = "balanced_accuracy"
    patience: Flagged[CountOrZero] = 0
    checkpoint_every: Count = 10
    device: Flagged[str] = "auto"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    backend: Flagged[Literal["auto", "sequential", "vectorized", "parallel", "ray"]] = "auto"
    workers: int = 0
    shot_groups: Literal["range", "share"] = "range"
    diagnostics: Flagged[tuple[Diagnostic, ...]] = ()
    metrics: Flagged[tuple[str, ...]] = ()
    track: Flagged[tuple[str, ...]] = ()
    reject_nonfinite: bool = True
    profile: bool = False
    target: tuple[float, ...] | dict[str, float] | None = None

    @property
    def target_shares(self) -> NDArray[np.float64] | None:
        """The target as an array, in the order of the classes."""
        if isinstance(self.target, dict):
            raise ValueError(
                f"run.target = {self.target} is not allowed here, where classes have no names: give a list"
            )
        return None if self.target is None else np.array(self.target, dtype=np.float64)

    def with_target_of(self, classes: Sequence[str]) -> "RunOptions":
        """Return the options with the target in the order of these classes."""
        if self.target is None:
            return self
        return replace(self, target=order_shares(self.target, classes, "run.target"))

    def __post_init__(self) -> None:
        ClusterOptions.__post_init__(self)
        require_allowed(self)
        require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 to 2**63 - 1")


@dataclass(frozen=True)
class Component:
    """A named component and its options.

    `value` is the object that was given in place of a name, if there was one: the name then describes it. A
    component that only a run's folder names is not `trusted`: its code is not imported.
    """

    name: str
    options: dict[str, object] = field(default_factory=dict)
    value: Any = field(default=None, compare=False, repr=False)
    trusted: bool = field(default=True, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a whole run.

    `source` is the data itself, where it was given as an object: `data.dataset` then describes it.
    """

    data: DataOptions = field(default_factory=DataOptions)
    partition: Component = Component("auto")
    model: Component = Component("auto")
    method: Component = Component("fedwcm")
    loss: Component = Component("cross_entropy")
    sampler: Component = Component("uniform")
    local: LocalOptions = field(default_factory=LocalOptions)
    participation: ParticipationOptions = field(default_factory=ParticipationOptions)
    aggregation: Aggregation = field(default_factory=Aggregation)
    privacy: PrivacyOptions = field(default_factory=PrivacyOptions)
    server: ServerOptions = field(default_factory=ServerOptions)
    run: RunOptions = field(default_factory=RunOptions)
    source: Any = field(default=None, compare=False, repr=False)

    @property
    def holds_objects(self) -> bool:
        """Whether text alone cannot rebuild the run."""
        return self.source is not None or any(getattr(self, name).value is not None for name in COMPONENTS)

    @property
    def title(self) -> str:
        """The name of the run."""
        name = self.method.name
        return self.run.name or (name.replace(":", ".").rpartition(".")[2] if ":" in name else name)


COMPONENTS = ("partition", "model", "method", "loss", "sampler")
SECTIONS: dict[str, type] = {
    "data": DataOptions,
    "local": LocalOptions,
    "participation": ParticipationOptions,
    "aggregation": Aggregation,
    "privacy": PrivacyOptions,
    "server": ServerOptions,
    "run": RunOptions,
}
PARTITION_DEFAULTS: dict[str, object] = {"clients": 100, "beta": 0.1}
"""Of the partitions that have these options."""
