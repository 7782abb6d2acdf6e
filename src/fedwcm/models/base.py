"""The common structure of this package's models: a body that computes features, and a linear head."""

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from fedwcm.core.checks import require_known


class CosineLinear(nn.Linear):
    """Scores are cosines, W_c·f / (‖W_c‖ ‖f‖), in [-1, 1]: neither a long row nor a long feature raises a score.

    Cross-entropy of such scores hardly trains: use a loss that scales them, as `ldam` does (`normalize = false`).
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Return the cosine of each feature vector with each row."""
        return linear(normalize(input, dim=-1), normalize(self.weight, dim=-1))


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
