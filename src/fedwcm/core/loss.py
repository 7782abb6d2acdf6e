"""The interface of a loss: a function of the model's outputs on a mini-batch.

Like a method, a loss is a frozen dataclass with pure hooks that see a block of K clients. It may keep client state
(the engine stores it next to the method's) and may read all of a client's data once per round.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, LocalData, Outputs
from fedwcm.core.checks import Needs, require_allowed
from fedwcm.core.types import Clients, Context, Floats, Population, State, Vec


@dataclass(frozen=True)
class LogitScale:
    """u = factor · z or, with `normalize`, u = factor · z / sqrt(1 + |f|²).

    z are the logits, f the features that they are computed from; the 1 is the input of the head's bias. All
    classes of a sample share the scale: it changes the probabilities, softmax(u), and never the predicted class.
    """

    factor: float = 1.0
    normalize: bool = False

    def __call__(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return the scaled logits `(…, C)`, given the features `(…, d)`."""
        if self.normalize:
            return logits * (self.factor * inverse_feature_norm(features))
        return logits if self.factor == 1.0 else logits * self.factor


def inverse_feature_norm(features: Tensor) -> Tensor:
    """Return (1 + |f|²)^(−1/2) for features `(…, d)`, as `(…, 1)`."""
    if not features.numel():
        raise ValueError("loss.normalize = true needs a model with a final linear layer")
    norm: Tensor = torch.linalg.vecdot(features, features)[..., None].add(1.0)
    return norm.rsqrt()


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """Hooks of a loss. A subclass defines `__call__`."""

    name: ClassVar[str] = ""
    follows_target: ClassVar[bool] = False
    """Whether a loss that corrects the prior makes the model expect `run.target`, not equally frequent classes."""
    averages_samples: ClassVar[bool] = True
    """Whether the loss of a batch is the mean of those of its samples, so that a large batch may be cut."""
    needs: ClassVar[Mapping[str, Needs]] = {}
    """As a method's: what options need to have an effect."""

    def __post_init__(self) -> None:
        require_allowed(self)

    @property
    def corrects_prior(self) -> bool:
        """Whether the model that it trains expects another class distribution than that of the training data."""
        return False

    def class_factors(self, ctx: Context) -> Floats | None:
        """Return what the loss makes of the class shares of a batch, as factors `(K, C)` or `(1, C)`.

        The logits with the least loss are those of a posterior for classes that are distributed as shares times
        factors. A factor is 0 where the client's softmax leaves the class out. None if there is no such rule.
        """
        return None if self.corrects_prior else np.ones((1, ctx.population.classes))

    @property
    def logit_scale(self) -> LogitScale:
        """What it multiplies the logits by: the trained model is tested and used with the same scale."""
        return LogitScale()

    @property
    def depends_on_rounds(self) -> bool:
        """Whether it reads `ctx.population.rounds`: then a finished run cannot be continued with more rounds."""
        return False

    def check_data(self, fingerprint: str) -> None:
        """Raise ValueError for a data set that it was not made for, known by its fingerprint."""
        return

    def init_client(self, clients: Clients, population: Population) -> State:
        """Return the clients' own state at their first participation, one row per client."""
        return {}

    def prepare(self, local: LocalData, ctx: Context) -> State:
        """Return what `__call__` finds in `ctx.prepared`, one row per client; called once per round."""
        return {}

    def views(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> Batch:
        """Return the batch of a local step with other views of its samples, given each client's generator.

        Passes over all local data (`LocalData`) are on plain batches, whose `views` is 1.
        """
        return batch

    def finish(self, w: Vec, local: LocalData, o: State, ctx: Context) -> State:
        """Return the client state to keep, after the last step, given the trained models `w (K, P)`."""
        return o

    @abstractmethod
    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        """Return each client's loss `(K,)` on its batch, and the client state after this step."""


class LossGradient(NamedTuple):
    """Each client's loss `(K,)`, and its gradients; `by_features` is None for a loss of the logits alone.

    None of them is part of an autograd graph. The gradients are new: the caller may change them in place.
    """

    loss: Tensor
    by_logits: Tensor
    by_features: Tensor | None = None

    def by_outputs(self, outputs: Outputs) -> list[tuple[Tensor, Tensor]]:
        """Return each part of the outputs that the loss uses, with the gradient with respect to it."""
        pairs = [(outputs.logits, self.by_logits)]
        return pairs if self.by_features is None else [*pairs, (outputs.features, self.by_features)]


@dataclass(frozen=True, kw_only=True)
class ExplicitLoss(Loss):
    """A loss of logits and features with an explicit gradient, which saves the engine a pass through autograd.

    A subclass defines only `with_gradient`.
    """

    @abstractmethod
    def with_gradient(self, outputs: Outputs, batch: Batch, ctx: Context) -> LossGradient:
        """Return the loss and its gradients, taking logits and features as independent variables."""

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        """Return the loss as a term that autograd can differentiate once: its first-order Taylor expansion."""
        with torch.no_grad():
            gradient = self.with_gradient(outputs, batch, ctx)
        loss = gradient.loss
        for value, slope in gradient.by_outputs(outputs):
            loss = loss + (slope * (value - value.detach())).sum(dim=(-2, -1))
        return loss, o
