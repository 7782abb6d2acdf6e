"""What it takes to use a trained model."""

from dataclasses import dataclass

from fedwcm.core.json_record import JsonRecord


@dataclass(frozen=True, kw_only=True)
class ModelFacts(JsonRecord):
    """What it takes to use a trained model, kept next to its parameters in `model.safetensors`.

    Args:
        mean, std: subtracted from and divided into raw inputs, per channel or column.
        keeps_integers: whether inputs of whole numbers, such as tokens, are left as they are.
    """

    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    keeps_integers: bool = False
