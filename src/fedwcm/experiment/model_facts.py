"""The metadata of a trained model, from what its run was built of."""

from collections.abc import Sequence

from fedwcm.config.schema import Config
from fedwcm.core.types import Floats, Ints
from fedwcm.data import Dataset
from fedwcm.data.fingerprint import fingerprint
from fedwcm.data.inputs import Normalizer
from fedwcm.experiment.components import Components
from fedwcm.models.facts import ModelFacts


def model_facts(
    input_shape: tuple[int, ...],
    classes: Sequence[str],
    normalizer: Normalizer | None,
    class_counts: Ints,
    assumed: Floats | None,
    config: Config,
    components: Components,
    dataset: Dataset | None = None,
) -> ModelFacts:
    """Return what is needed to use a trained model; without a normalizer, inputs are unchanged."""
    mean, std = ([0.0], [1.0]) if normalizer is None else (normalizer.mean.tolist(), normalizer.std.tolist())
    return ModelFacts(
        input_shape=tuple(input_shape),
        classes=tuple(classes),
        mean=tuple(mean),
        std=tuple(std),
        keeps_integers=normalizer is not None and normalizer.keeps_integers,
        schema=None if dataset is None else dataset.schema.to_json(),
        fingerprint=None if dataset is None else fingerprint(dataset),
        class_counts=tuple(class_counts.tolist()),
        target=None if config.run.target_shares is None else tuple(config.run.target_shares.tolist()),
        assumed=None if assumed is None else tuple(assumed.tolist()),
        balanced_by=components.balanced_by,
        logit_factor=components.loss.logit_scale.factor,
        normalizes_logits=components.loss.logit_scale.normalize,
    )
