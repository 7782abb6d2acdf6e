"""The scale of logits: what a loss multiplies them by before it takes their softmax."""

from dataclasses import dataclass

import torch
from torch import Tensor


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
