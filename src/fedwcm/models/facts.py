"""What it takes to use a trained model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedwcm.core.json_record import JsonRecord, optional


@dataclass(frozen=True, kw_only=True)
class ModelFacts(JsonRecord):
    """What it takes to use a trained model, kept next to its parameters in `model.safetensors`.

    Args:
        mean, std: subtracted from and divided into raw inputs, per channel or column.
        keeps_integers: whether inputs of whole numbers, such as tokens, are left as they are.
        schema: how the training data was read; None if it stayed with its clients.
        fingerprint: of the training data and its split; None if it stayed with its clients.
    """

    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    keeps_integers: bool = False
    schema: Mapping[str, Any] | None = optional()
    fingerprint: str | None = optional()
