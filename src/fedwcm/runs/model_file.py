"""A run's trained model: parameters, and in the metadata what it takes to use them."""

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedwcm.core.types import State
from fedwcm.models.facts import ModelFacts
from fedwcm.runs.files import replacing
from fedwcm.runs.folder import RunFolder

METADATA = "fedwcm"


def read_model(folder: RunFolder) -> State:
    """The parameters by name."""
    return load_file(folder.model_file)


def read_facts(folder: RunFolder) -> ModelFacts:
    """The facts about the model, without its parameters."""
    with safe_open(folder.model_file, framework="numpy") as file:
        return ModelFacts.from_json(json.loads(file.metadata()[METADATA]), str(folder.model_file))


def write_model(path: Path, state: State, facts: ModelFacts) -> None:
    """Write a model; a crash leaves no half of it."""
    tensors = {key: value.cpu().contiguous() for key, value in state.items()}
    with replacing(path) as draft:
        save_file(tensors, draft, metadata={METADATA: json.dumps(facts.to_json())})
