"""Post-hoc logit adjustment: a trained model, corrected for the class distribution that it was trained on.

Menon, Jayasumana, Rawat, Jain, Veit, Kumar. Long-Tail Learning via Logit Adjustment. ICLR 2021.
"""

import torch
from torch import Tensor, nn

from fedwcm.balance import prior_shift
from fedwcm.core.checks import require
from fedwcm.models.facts import ModelFacts


class Adjusted(nn.Module):
    """A model whose logits are lowered by a fixed amount for each class."""

    shift: Tensor

    def __init__(self, model: nn.Module, shift: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("shift", shift)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs)
        return logits - self.shift


def adjusted(model: nn.Module, facts: ModelFacts, tau: float) -> nn.Module:
    """Return the model with logits z − τ (log p − log p̂), for the distributions in its metadata.

    Args:
        model: the trained model.
        facts: its metadata.
        tau: strength: 0 returns the model itself, 1 is Bayes' rule.

    Raises:
        ValueError: if training already accounted for the class distribution, or the metadata does not have it.
    """
    require(tau >= 0, "adjust", tau, "non-negative")
    if not tau:
        return model
    if facts.balanced_by is not None:
        raise ValueError(
            f"adjust = {tau:g} is not for this model: it was trained with {facts.balanced_by}, which accounts for "
            "the class distribution already. To adjust it again would correct twice"
        )
    if facts.class_counts is None:
        raise ValueError("adjust needs the class counts of the training data, and the model file has none")
    shift = prior_shift([facts.class_counts], facts.target, tau)[0]
    return Adjusted(model, torch.as_tensor(shift, dtype=torch.float32)).eval()
