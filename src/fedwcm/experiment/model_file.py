"""A run's trained model: parameters, and in the metadata what it takes to use them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fedwcm.core.types import State
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
