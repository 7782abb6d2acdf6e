"""The metadata of a trained model."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedwcm.core.logit_scale import LogitScale
from fedwcm.utils.json_record import JsonRecord, optional


@dataclass(frozen=True, kw_only=True)
class ModelFacts(JsonRecord):
    """What is needed to use a trained model, stored next to its parameters in `model.safetensors`.

    Args:
        mean, std: subtracted from and divided into raw inputs, per channel or column.
        keeps_integers: whether integer inputs, such as tokens, stay unchanged.
        schema: how to read other data for the model; None if the data stayed with the clients.
        fingerprint: fingerprint of the training data and its division.
        class_counts: training samples of each class over all clients, as they were gathered.
        target: the class distribution that the model is meant for (`run.target`); None for the uniform one.
        logit_factor, normalizes_logits: the scale of the logits in training (`LogitScale`).
        temperature: divides the logits beside that, as fitted on validation data (`fedwcm.calibrate`).
        balanced_by: the loss or sampler that made training account for the class distribution; None if none did.
    """

    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    keeps_integers: bool = False
    schema: Mapping[str, object] | None = optional()
    fingerprint: str | None = optional()
    class_counts: tuple[int, ...] | None = optional()
    target: tuple[float, ...] | None = optional()
    balanced_by: str | None = optional()
    logit_factor: float = 1.0
    normalizes_logits: bool = False
    temperature: float = 1.0

    @property
    def scale(self) -> LogitScale:
        """The scale on which the model's logits give probabilities."""
        return LogitScale(self.logit_factor / self.temperature, self.normalizes_logits)
