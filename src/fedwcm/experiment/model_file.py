"""A run's trained model: parameters, and in the metadata what it takes to use them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fedwcm.config.schema import Config
from fedwcm.core.types import Floats, Ints, State
from fedwcm.data import Dataset
from fedwcm.data.fingerprint import fingerprint
from fedwcm.data.inputs import Normalizer
from fedwcm.experiment.components import Components
from fedwcm.experiment.files import replacing, require_readable
from fedwcm.experiment.folder import RunFolder
from fedwcm.models.facts import ModelFacts
from fedwcm.utils.json_record import RecordError

METADATA = "fedwcm"


def read_model(folder: RunFolder) -> State:
    """Return the parameters by name."""
    with _require_undamaged(folder.model_file):
        return load_file(folder.model_file)


def read_facts(folder: RunFolder) -> ModelFacts:
    """Return the facts about the model, without its parameters."""
    path = folder.model_file
    with _require_undamaged(path), safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
    try:
        values = json.loads(metadata[METADATA])
    except (KeyError, json.JSONDecodeError):
        raise RecordError(f"{path} is no model of fedwcm: its metadata have no JSON under {METADATA!r}") from None
    return ModelFacts.from_json(values, str(path))


@contextmanager
def _require_undamaged(path: Path) -> Iterator[None]:
    """Name the file that cannot be read."""
    require_readable(path)
    try:
        yield
    except SafetensorError as error:
        raise RecordError(
            f"{path} is damaged ({error}): make it again, or copy it from where it is whole"
        ) from error


def write_model(path: Path, state: State, facts: ModelFacts) -> None:
    """Write a model; a crash leaves no half of it."""
    tensors = {key: value.cpu().contiguous() for key, value in state.items()}
    with replacing(path) as draft:
        save_file(tensors, draft, metadata={METADATA: json.dumps(facts.to_json())})


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
