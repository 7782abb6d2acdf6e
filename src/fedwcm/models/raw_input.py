"""A trained model together with its normaliser: raw inputs in, scores and probabilities out."""

import torch
from torch import Tensor, nn

from fedwcm.models.facts import ModelFacts

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
    """Whether raw inputs are images; if the data stayed with the clients, inputs are as the model takes them."""
    return facts.schema is not None and len(facts.input_shape) == IMAGE_DIMENSIONS


def raw_shape(facts: ModelFacts) -> tuple[int, ...]:
    """Return the shape of a raw sample: images with the channels last."""
    if not is_image(facts):
        return facts.input_shape
    channels, height, width = facts.input_shape
    return (height, width, channels)
