"""The common structure of this package's models: a body that computes features, and a linear head."""

from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from fedwcm.models.checks import require_known
from fedwcm.models.cosine import CosineLinear

HEADS: dict[str, Callable[[int, int], nn.Linear]] = {"linear": nn.Linear, "cosine": CosineLinear}
"""Final layers: `cosine` has no bias and normalises features and rows, as LDAM's authors do."""


class Classifier(nn.Sequential):
    """`forward(x) = head(body(x))`, with `head` the final linear layer.

    No layer works in place, so that a model can be called through `torch.func.functional_call` and, if it has no
    BatchNorm, through `torch.vmap` over stacked parameters.
    """

    body: nn.Module
    head: nn.Linear

    def __init__(self, body: nn.Module, width: int, classes: int, head: str = "linear") -> None:
        require_known("head", head, HEADS)
        super().__init__(OrderedDict(body=body, head=HEADS[head](width, classes)))
