"""The head of a model, its final linear layer, as a matrix; and methods that evaluate with another one."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softmax

from fedwcm.core.batch import LocalData
from fedwcm.core.types import Cohort, Context, Layout, State, Uploads, Vec

if TYPE_CHECKING:
    from fedwcm.core.method import Method as Base
else:
    Base = object

CLASS_COUNTS = "how many samples of each class they have"
"""What clients say with the sums of their features by class."""
NO_HEAD = "this method needs a model with a final linear layer that is trained"


def head_of(x: Vec, layout: Layout) -> tuple[Tensor, int]:
    """Return the head in `x`, one row per class with the bias (if any) last, and the number of features."""
    weight, bias = f"{layout.head}.weight", f"{layout.head}.bias"
    parameters = layout.unflatten(x)
    if weight not in parameters:
        raise ValueError(NO_HEAD)
    columns = [parameters[weight], *([parameters[bias][:, None]] if bias in parameters else [])]
    return torch.cat(columns, dim=-1), columns[0].shape[-1]


def with_head(x: Vec, start: int, head: Tensor, width: int) -> Vec:
    """Return `x` with this head, whose first parameter is at `start`; `width` is the number of features."""
    weight, bias = head.tensor_split([width], dim=-1)
    flat = torch.cat([weight.reshape(-1), bias.reshape(-1)])
    return torch.cat([x[:start], flat, x[start + len(flat) :]])


def features_of(local: LocalData, ctx: Context, w: Vec | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features of all samples by batches, and 1 where a sample has a class, 0 for padding.

    They are those of the models `w (K, P)` or, by default, of the received one.
    """
    models = ctx.x.expand(len(ctx.clients), -1) if w is None else w
    for batch in local.batches():
        features = local.outputs(models, batch).features
        if not features.numel():
            raise ValueError(NO_HEAD)
        members = one_hot(batch.labels, ctx.population.classes).to(features.dtype)
        yield features, members if batch.weight is None else members * batch.weight[..., None]


def train_head(
    head: Tensor, inputs: Tensor, targets: Tensor, epochs: int, size: int, lr: float, rng: torch.Generator
) -> Tensor:
    """Return the head `(C, width)` after passes of SGD on the cross-entropy of inputs with one-hot targets."""
    head = head.clone()
    for _ in range(epochs):
        order = torch.randperm(len(inputs), generator=rng).to(inputs.device)
        shuffled = (torch.split(rows[order], size) for rows in (inputs, targets))
        for batch, target in zip(*shuffled, strict=True):  # no autograd: the steps are many and tiny
            by_logits = softmax(batch @ head.T, dim=-1).sub_(target)
            head.addmm_(by_logits.T, batch, alpha=-lr / len(batch))
    return head


@dataclass(frozen=True, kw_only=True)
class EvaluatedHead(Base):
    """Mix-in that evaluates and exports the model with another head, which is computed from the trained one.

    Training goes on with the trained one. Like `SharpnessAware`, it is a `Method` only for the type checker.
    """

    replaces_head: ClassVar[bool] = True

    @abstractmethod
    def evaluated_head(self, weight: Tensor, bias: Tensor, s: State) -> tuple[Tensor, Tensor]:
        """Return the weight `(C, d)` and bias `(C, 1)` to evaluate; a bias that does not exist is `(C, 0)`."""

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        head, width = head_of(x, cohort.layout)
        x, s = super().update(x, s, uploads, cohort)
        place = [cohort.layout.head_slices[0].start, *head.shape, width]
        return x, {**s, "head_place": torch.tensor(place)}

    def eval_params(self, x: Vec, s: State) -> Vec:
        if "head_place" not in s:
            return x
        start, classes, columns, width = s["head_place"].tolist()
        weight, bias = x[start : start + classes * columns].tensor_split([classes * width])
        head = self.evaluated_head(weight.view(classes, width), bias.view(classes, columns - width), s)
        return with_head(x, start, torch.cat(head, dim=-1), width)
