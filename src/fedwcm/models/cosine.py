"""A linear layer that sees directions only: the classifier of LDAM's authors."""

from torch import Tensor, nn
from torch.nn.functional import linear, normalize


class CosineLinear(nn.Linear):
    """Scores are cosines, W_c·f / (‖W_c‖ ‖f‖), in [-1, 1]: neither a long row nor a long feature raises a score.

    Cross-entropy of such scores hardly trains: use a loss that scales them, as `ldam` does (`normalize = false`).
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Return the cosine of each feature vector with each row."""
        return linear(normalize(input, dim=-1), normalize(self.weight, dim=-1))
