"""The keywords that are options, with their types. Written by `python -m tools.make_options`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from fedwcm.api import arguments


class DataKeywords(TypedDict, total=False):
    """Keywords of how the data are read and divided; docs/options.md has their meaning."""

    dataset: "arguments.DataLike | None"
    data_dir: "str | Path | None"
    label: str | None
    client: str | None
    group: str | None
    split: str | None
    features: Sequence[str] | None
    drop: Sequence[str] | None
    impute: Literal["median"] | None
    encoding: str | None
    delimiter: str | None
    unlabelled: Literal["skip"] | None
    image_size: int | None
    test_fraction: float | None
    test_clients: float | Sequence[str] | Sequence[int] | None
    val_fraction: float | None
    val_clients: float | Sequence[str] | Sequence[int] | None
    server_fraction: float | None
    imbalance: float | Literal["auto", "none"] | None
    partition: "arguments.PartitionLike | None"
    clients: "arguments.ClientsLike | None"
    beta: "float | None"


class PartitionKeywords(DataKeywords, total=False):
    """Keywords of `fedwcm.partition`; docs/options.md has their meaning."""

    seed: int | None


class CompareKeywords(DataKeywords, total=False):
    """Keywords of `fedwcm.compare` and `fedwcm.tune`; docs/options.md has their meaning."""

    normalize: Literal["auto", "standard", "none"] | Sequence[float] | Sequence[Sequence[float]] | None
    augment: bool | None
    model: "arguments.ModelLike | None"
    loss: "arguments.LossLike | None"
    sampler: "arguments.SamplerLike | None"
    lr: float | None
    epochs: int | None
    steps: int | None
    batch_size: int | None
    participation: float | None
    sampling: "arguments.ParticipationLike | None"
    privacy: Literal["none", "he"] | None
    rounds: int | None
    eval_every: int | None
    patience: int | None
    device: str | None
    backend: Literal["auto", "sequential", "vectorized", "parallel", "ray"] | None
    diagnostics: Sequence[Literal["concentration", "train_set", "clients"]] | None
    metrics: "Sequence[arguments.MetricLike] | None"
    track: "Sequence[arguments.TrackerLike] | None"


class RunKeywords(CompareKeywords, total=False):
    """Keywords of `fedwcm.run`; docs/options.md has their meaning."""

    seed: int | None
