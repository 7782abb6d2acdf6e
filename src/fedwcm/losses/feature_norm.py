"""The norm by which losses divide logits: that of the head's input, features and the 1 of the bias."""

import torch
from torch import Tensor


def inverse_feature_norm(features: Tensor, loss: str) -> Tensor:
    """Return (1 + |f|²)^(−1/2) for features `(K, b, d)`, as `(K, b, 1)`; `loss` is named in the error."""
    if not features.numel():
        raise ValueError(f"loss {loss} with normalize = true needs a model with a final linear layer")
    norm: Tensor = torch.linalg.vecdot(features, features)[..., None].add(1.0)
    return norm.rsqrt()
