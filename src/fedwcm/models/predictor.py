"""A trained model from raw inputs to scores: the logits of its loss, corrected for another class distribution.

Menon, Jayasumana, Rawat, Jain, Veit, Kumar. Long-Tail Learning via Logit Adjustment. ICLR 2021.
"""

from threading import get_ident

import numpy as np
import torch
from torch import Tensor, nn

from fedwcm.core.loss import LogitScale
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


IMAGE_DIMENSIONS = 3
OUTPUTS = ("logits", "probabilities")


class RawInputModel(nn.Module):
    """Normalises raw inputs as in training, and returns the logits and the probabilities of the classes.

    Images are `(n, height, width, channels)`, everything else is as the model takes it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, facts: ModelFacts) -> None:
        super().__init__()
        self.model = model
        self.keeps_integers = facts.keeps_integers
        self.is_image = is_image(facts)
        self.register_buffer("mean", torch.tensor(facts.mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(facts.std, dtype=torch.float32))

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the probabilities, `(n, classes)` each."""
        x = input.long() if self.keeps_integers else (input.float() - self.mean) / self.std
        logits: Tensor = self.model(x.permute(0, 3, 1, 2).contiguous() if self.is_image else x)
        return logits, logits.softmax(dim=-1)


def is_image(facts: ModelFacts) -> bool:
    """Return whether raw inputs are images; where data stayed with clients, they are as the model takes them."""
    return facts.schema is not None and len(facts.input_shape) == IMAGE_DIMENSIONS


def raw_shape(facts: ModelFacts) -> tuple[int, ...]:
    """Return the shape of a raw sample: images with the channels last."""
    if not is_image(facts):
        return facts.input_shape
    channels, height, width = facts.input_shape
    return (height, width, channels)
