"""What the public functions take: names as on the command line, or objects."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from fedwcm.config.schema import Config
from fedwcm.core.batch import Sampler
from fedwcm.core.checks import unknown
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.data import Dataset
from fedwcm.data.partition import Partition
from fedwcm.engine.participation import Participation
from fedwcm.experiment.trackers import Tracker
from fedwcm.metrics.own import Metric


class DataFrame(Protocol):
    """A table of pandas, which need not be installed."""

    @property
    def columns(self) -> Any: ...

    def to_dict(self) -> Any: ...


class HuggingFaceDataset(Protocol):
    """A set of the package datasets, which need not be installed."""

    @property
    def features(self) -> Any: ...

    def with_format(self, type: str) -> Any: ...


Array = NDArray[Any] | Tensor
MetricLike = str | Metric
TrackerLike = str | Tracker
MethodLike = str | Method | type[Method]
MethodsLike = Sequence[MethodLike] | Mapping[str, MethodLike | Mapping[str, object]]
"""Methods, or by the name that tables show a method, or a method with options of its own."""

LossLike = str | Loss | type[Loss]
SamplerLike = str | Sampler | type[Sampler]
ModelLike = str | nn.Module | Callable[..., nn.Module]
ParticipationLike = str | Participation | type[Participation]
PartitionLike = str | Partition | type[Partition]
DataLike = (
    str
    | Path
    | Dataset
    | tuple[Any, ...]
    | list[tuple[Any, Any]]
    | Mapping[str, Any]
    | DataFrame
    | HuggingFaceDataset
    | TorchDataset[Any]
)
ClientsLike = int | Sequence[int] | Sequence[str] | NDArray[np.generic] | Tensor
Folder = str | PathLike[str]
"""The folder of a run, or the `Result` that `fedwcm.run` returned."""

ConfigLike = str | Path | Config


class ReadKeywords(TypedDict, total=False):
    """Keywords of how data are read for a trained model; docs/options.md has their meaning under `data`."""

    data_dir: str | Path | None
    label: str | None
    client: str | None
    drop: Sequence[str]
    encoding: str | None
    delimiter: str | None


def refuse_others(options: Mapping[str, object], known: Iterable[str], owner: str) -> None:
    """Refuse a keyword that is none of these options of the owner, with a suggestion."""
    for name in options.keys() - set(known):
        raise unknown(f"option of {owner}:", name, known)
