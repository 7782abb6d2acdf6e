"""A trained model with the logits that its loss was taken of, and their correction for another class distribution.

Menon, Jayasumana, Rawat, Jain, Veit, Kumar. Long-Tail Learning via Logit Adjustment. ICLR 2021.
"""

from threading import get_ident

import numpy as np
import torch
from torch import Tensor, nn

from fedwcm.core.logit_scale import LogitScale
from fedwcm.core.types import Floats
from fedwcm.models.facts import ModelFacts


class Predictor(nn.Module):
    """Logits of a model, scaled as they were in training, plus a fixed amount for each class."""

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
        return self.scale(logits, features) + self.shift

    def _capture(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._features[get_ident()] = arguments[0]

    def extra_repr(self) -> str:
        return f"factor={self.scale.factor:g}, normalize={self.scale.normalize}"


def predictor(model: nn.Module, facts: ModelFacts, shift: Floats | None = None) -> nn.Module:
    """Return the model, in evaluation mode, with the logits that its metadata asks for.

    Args:
        model: the trained model: returned as it is if its own logits are those.
        facts: its metadata: the scale of training, and the temperature.
        shift: added to the logits, one number per class; by default that of the model's operating point.
    """
    if shift is None:
        shift = np.array(facts.operating_shift or np.zeros(len(facts.classes)))
    if facts.scale == LogitScale() and not shift.any():
        return model.eval()
    return Predictor(model, facts.scale, torch.as_tensor(shift, dtype=torch.float32)).eval()


def find_head(module: nn.Module, classes: int | None) -> tuple[str | None, nn.Linear | None]:
    """Return the final linear layer and its name: `head`, or else the last with as many outputs as classes."""
    linears = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    named = [(name, m) for name, m in linears if name == "head"]
    fitting = named or [(name, m) for name, m in linears if classes in (None, m.out_features)]
    return fitting[-1] if fitting else (None, None)
