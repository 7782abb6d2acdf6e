"""The metadata of a trained model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedwcm.balance import ABSENT, bayes_shift, client_shares
from fedwcm.core.loss import LogitScale
from fedwcm.core.types import Floats
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
        assumed: the class distribution that the probabilities presuppose; None if no rule gives it.
        fitted: the same as fitted to validation data where no rule gives it (`fedwcm.calibrate`).
        operating_point, operating_shift: what was chosen on validation data (`fedwcm.choose_operating_point`), and
            what it adds to the logits.
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
    assumed: tuple[float, ...] | None = optional()
    fitted: tuple[float, ...] | None = optional()
    operating_point: str | None = optional()
    operating_shift: tuple[float, ...] | None = optional()

    @property
    def natural_shares(self) -> Floats:
        """The class distribution of the training data; a class without samples counts as half a sample."""
        if self.class_counts is None:
            raise ValueError("the model file does not have the class counts of the training data")
        counts = np.maximum(np.array(self.class_counts, dtype=np.float64), ABSENT)
        shares: Floats = counts / counts.sum()
        return shares

    @property
    def assumed_shares(self) -> Floats:
        """The class distribution that the probabilities presuppose; that of the data if training was plain."""
        known = self.assumed or self.fitted
        if known is not None:
            return np.array(known)
        if self.has_rule:
            return self.natural_shares
        raise ValueError(
            f"the class distribution that this model presupposes is not known: it was trained with "
            f"{self.balanced_by}. Fit it to validation data (evaluate --calibrate), or choose an operating point"
        )

    @property
    def has_rule(self) -> bool:
        """Whether the training determines the class distribution that the probabilities presuppose."""
        return self.assumed is not None or self.balanced_by is None

    def shift_to(self, shares: Floats) -> Floats:
        """Return what turns the logits into those for classes with these shares, by Bayes' rule."""
        return bayes_shift(shares, self.assumed_shares)

    def shares_at(self, counts: Sequence[int]) -> Floats:
        """Return the class mix of a client with these training samples of each class."""
        return client_shares(counts, self.natural_shares)

    @property
    def scale(self) -> LogitScale:
        """The scale on which the model's logits give probabilities."""
        return LogitScale(self.logit_factor / self.temperature, self.normalizes_logits)
