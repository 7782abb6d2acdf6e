"""What it takes to use a trained model."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedwcm.core.json_record import JsonRecord, optional


@dataclass(frozen=True, kw_only=True)
class ModelFacts(JsonRecord):
    """What it takes to use a trained model, kept next to its parameters in `model.safetensors`.

    Args:
        mean, std: subtracted from and divided into raw inputs, per channel or column.
        keeps_integers: whether inputs of whole numbers, such as tokens, are left as they are.
        schema: how other data is read for the model; None where the data stayed with the clients.
        fingerprint: of the data that it was trained on, divided as it was.
    """

    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    keeps_integers: bool = False
    schema: Mapping[str, object] | None = optional()
    fingerprint: str | None = optional()
