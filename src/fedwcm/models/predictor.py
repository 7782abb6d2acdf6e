"""A trained model with the logits that its loss was taken of, and their correction for another class distribution.

Menon, Jayasumana, Rawat, Jain, Veit, Kumar. Long-Tail Learning via Logit Adjustment. ICLR 2021.
"""

from threading import get_ident

import torch
from torch import Tensor, nn

from fedwcm.balance import prior_shift
from fedwcm.core.checks import require
from fedwcm.core.logit_scale import LogitScale
from fedwcm.models.facts import ModelFacts


class Predictor(nn.Module):
    """Logits of a model, scaled as they were in training, less a fixed amount for each class."""

    shift: Tensor

    def __init__(self, model: nn.Module, scale: LogitScale, shift: Tensor) -> None:
        super().__init__()
        self.model, self.scale = model, scale
        self.register_buffer("shift", shift)
        self._features: dict[int, Tensor] = {}  # by thread: a server may call the model in several
        if scale.normalize:
            _, head = find_head(model, len(shift))
            if head is None:
                raise ValueError("the logits of this model are normalised, and it has no final linear layer")
            head.register_forward_pre_hook(self._capture)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs)
        features = self._features.pop(get_ident()) if self.scale.normalize else logits
        return self.scale(logits, features) - self.shift

    def _capture(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._features[get_ident()] = arguments[0]

    def extra_repr(self) -> str:
        return f"factor={self.scale.factor:g}, normalize={self.scale.normalize}"


def predictor(model: nn.Module, facts: ModelFacts, adjust: float = 0.0) -> nn.Module:
    """Return the model, in evaluation mode, with the logits that its metadata asks for.

    These are u − τ (log p − log p̂), u the logits on the scale of training and of its temperature.

    Args:
        model: the trained model: returned as it is if its own logits are those.
        facts: its metadata.
        adjust: τ: 0 for no correction, 1 for Bayes' rule.

    Raises:
        ValueError: if training already accounted for the class distribution, or the metadata does not have it.
    """
    require(adjust >= 0, "adjust", adjust, "non-negative")
    shift = _shift(facts, adjust) if adjust else torch.zeros(len(facts.classes))
    if facts.scale == LogitScale() and not adjust:
        return model.eval()
    return Predictor(model, facts.scale, shift).eval()


def _shift(facts: ModelFacts, tau: float) -> Tensor:
    if facts.balanced_by is not None:
        raise ValueError(
            f"adjust = {tau:g} is not for this model: it was trained with {facts.balanced_by}, which accounts for "
            "the class distribution already. To adjust it again would correct twice"
        )
    if facts.class_counts is None:
        raise ValueError("adjust needs the class counts of the training data, and the model file has none")
    return torch.as_tensor(prior_shift([facts.class_counts], facts.target, tau)[0], dtype=torch.float32)


def find_head(module: nn.Module, classes: int | None) -> tuple[str | None, nn.Linear | None]:
    """Return the final linear layer and its name: `head`, or else the last with as many outputs as classes."""
    linears = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    named = [(name, m) for name, m in linears if name == "head"]
    fitting = named or [(name, m) for name, m in linears if classes in (None, m.out_features)]
    return fitting[-1] if fitting else (None, None)
