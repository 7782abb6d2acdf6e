"""Samples, mini-batches, and what the models make of them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedwcm.core.types import Ints, Vec


@dataclass(frozen=True, eq=False)
class SampleStore:
    """Samples that stay in memory, from which batches are gathered by row."""

    inputs: Tensor
    labels: Tensor
    sample_ids: Tensor
    host_labels: Ints


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's data: rows of a sample store."""

    store: SampleStore
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> Ints:
        return self.store.host_labels[self.rows]


@dataclass(frozen=True, eq=False)
class Batch:
    """One mini-batch per client of a block; `weight` is 0 where a shorter batch was padded."""

    inputs: Tensor
    labels: Tensor
    weight: Tensor | None
    rows: Tensor
    store: SampleStore

    @property
    def sample_ids(self) -> Tensor:
        """The number of each sample in the data set that it was taken from."""
        return self.store.sample_ids[self.rows]

    def mean(self, values: Tensor) -> Tensor:
        """Average over the samples of each client's batch: `(K, b)` to `(K,)`."""
        return mean_over(values, self.weight)

    def share(self, values: Tensor) -> Tensor:
        """Scale `(K, b, …)` in place by what each sample contributes to `mean`."""
        if self.weight is None:
            return values.div_(self.labels.shape[1])
        return values.mul_((self.weight / self.sizes[:, None])[..., None])

    @property
    def sizes(self) -> Tensor:
        """How many samples each client really has in this batch, at least 1: `(K,)`."""
        if self.weight is None:
            return self.labels.new_full(self.labels.shape[:1], self.labels.shape[1])
        return _sizes(self.weight)


@dataclass(frozen=True, eq=False)
class Outputs:
    """The models at one point, on one batch: logits `(K, b, C)` and what leads to them.

    `features` is the input of the final linear layer, `head(features)` applies that layer to other features,
    and `at(x)` gives the outputs of another model, such as the received one, on the same batch, without gradient.
    """

    logits: Tensor
    features: Tensor
    head: Callable[[Tensor], Tensor]
    at: Callable[[Vec], "Outputs"]


def mean_over(values: Tensor, weight: Tensor | None) -> Tensor:
    """Average over the samples of batches `(…, b)`, counting those whose weight is 1."""
    return values.mean(dim=-1) if weight is None else (values * weight).sum(dim=-1) / _sizes(weight)


def _sizes(weight: Tensor) -> Tensor:
    return weight.sum(dim=-1).clamp(min=1)
