"""The common structure of this package's models: a body that computes features, and a linear head."""

from collections import OrderedDict

from torch import Tensor, nn


class Classifier(nn.Sequential):
    """`forward(x) = head(body(x))`, with `head` the final linear layer.

    No layer works in place, so that a model can be called through `torch.func.functional_call` and, if it has no
    BatchNorm, through `torch.vmap` over stacked parameters.
    """

    body: nn.Module
    head: nn.Linear

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__(OrderedDict(body=body, head=nn.Linear(width, classes)))

    def features(self, x: Tensor) -> Tensor:
        """Return the input of `head`, shape (batch, head.in_features)."""
        features: Tensor = self.body(x)
        return features
