"""`fedwcm.load_model` and `fedwcm.load_normalizer`: the trained model of a run, and the inputs that it takes."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwcm.api.arguments import Folder, ModelLike
from fedwcm.api.mix import CLIENT, Mix, client_shifts, is_of_client, mix_shift, require_one_mix
from fedwcm.config.schema import Component
from fedwcm.core.batch import Inputs
from fedwcm.core.torch_rng import default_torch_modes
from fedwcm.core.types import State
from fedwcm.data.inputs import Normalizer, are_small, model_inputs, warn_of_other_scale
from fedwcm.data.objects import as_array
from fedwcm.data.raw import InferenceRows
from fedwcm.data.schema import DatasetSchema
from fedwcm.engine.evaluate import CHUNK
from fedwcm.experiment.checkpoint import read_clients
from fedwcm.experiment.folder import RunFolder, runs_below
from fedwcm.experiment.model_file import read_facts, read_model
from fedwcm.experiment.models import chosen_model
from fedwcm.experiment.records import PartitionRecord
from fedwcm.models.facts import ModelFacts
from fedwcm.models.predictor import predictor


@default_torch_modes()
def load_model(
    folder: Folder, *, model: ModelLike | None = None, trust: bool = False, mix: Mix | None = None
) -> nn.Module:
    """Return the trained model of a run, in evaluation mode. It takes normalised inputs: see `load_normalizer`.

    Args:
        folder: the run's folder, or its result.
        model: what takes the trained weights, a module, a factory or `package.module:factory`; needed if the run
            was given an object, or names a factory and is not to be trusted.
        trust: import the factory that the folder names as `package.module:factory`.
        mix: the class distribution that the model will meet; its outputs are turned into those for it by Bayes'
            rule. `natural` is that of the training data, `uniform` equal shares, `target` the run's
            (`run.target`), `client:NAME` that of a client's training samples, `trained` what it was trained for.
            Or a share of every class: by name in a dict or as text (`ok=0.85,warn=0.15`), in the order of the
            classes, or in a file (JSON, or CSV lines `ok,0.85`). By default the model's operating point, if one
            was chosen, else `trained`.
    """
    return load_trained(Path(folder), model, trust, require_one_mix(mix)).module


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model and what it takes to use it.

    With a `partition`, every sample is predicted for the class mix of its own client.
    """

    module: nn.Module
    normalizer: "InputNormalizer"
    schema: DatasetSchema
    facts: ModelFacts
    partition: PartitionRecord | None = None

    def logits(self, rows: InferenceRows) -> Tensor:
        """Return the logits `(samples, classes)` of samples as they were read."""
        inputs = self.inputs(rows.x)
        with torch.no_grad():
            starts = range(0, len(inputs), CHUNK)  # copied, as a module may write into what it is given
            logits = torch.cat([self.module(inputs[start : start + CHUNK].clone()) for start in starts])
        if self.partition is None:
            return logits
        if rows.clients is None:
            raise ValueError(f"mix = 'client' needs the client of every row of {rows.name}: --client COLUMN")
        return logits + torch.from_numpy(client_shifts(rows.clients.tolist(), self.facts, self.partition)).to(
            logits
        )

    def inputs(self, x: NDArray[Any]) -> Inputs:
        """Return samples as the model takes them; many of them are prepared only when they are read."""
        warn_of_other_scale(x, self.normalizer.normalizer, self.schema.encoding.feature_names)
        small = are_small(x, len(x))
        return model_inputs(x, self.normalizer.normalizer, torch.device("cpu"), prepared=small)


def load_trained(folder: Path, model: ModelLike | None, trust: bool, mix: Mix | None = None) -> Trained:
    """Return the trained model of a run, for a class mix; with `client`, for that of each row's own client."""
    run_folder = RunFolder(folder)
    facts = read_model_facts(run_folder)
    schema = schema_of(facts)
    chosen = folder_model(run_folder, model, trust)
    module, _ = chosen_model(chosen, schema.input_shape, len(schema.classes), 0)
    try:
        module.load_state_dict(read_model(run_folder))
    except RuntimeError as error:
        raise ValueError(f"this model does not fit the weights in {folder}: {error}") from error
    by_client = mix == CLIENT
    partition = run_folder.partition() if by_client or is_of_client(mix) else None
    shift = mix_shift("trained" if by_client else mix, facts, partition)
    module = predictor(module, facts, shift)
    return Trained(module, input_normalizer(facts), schema, facts, partition if by_client else None)


def folder_model(folder: RunFolder, model: ModelLike | None, trust: bool) -> Component:
    """Return the model of a folder's run; one that is named or given in its place is trusted, but it alone."""
    chosen = folder.config(trust=trust).model
    if isinstance(model, str):
        return replace(chosen, name=model, trusted=True)
    return chosen if model is None else replace(chosen, value=model)


def read_model_facts(folder: RunFolder) -> ModelFacts:
    """Return the facts needed to use a run's model; an error if there is none."""
    if not folder.model_file.exists():
        missing = f"{folder.path} holds no finished run: there is no {folder.model_file.name} in it"
        raise FileNotFoundError(missing + runs_below(folder.path))
    return read_facts(folder)


def schema_of(facts: ModelFacts) -> DatasetSchema:
    """Return how other data is read for the model: by shape and classes if its data stayed with clients."""
    if facts.schema is not None:
        return DatasetSchema.from_json(dict(facts.schema))
    return DatasetSchema(facts.classes, facts.input_shape, "float32")


@dataclass(frozen=True, eq=False)
class InputNormalizer:
    """Turns raw inputs into the tensor that a run's model takes: normalised, images with the channels first.

    Takes arrays, tensors and nested lists. Images are `(n, height, width, channels)`, in tensors also
    `(n, channels, height, width)`, grey ones also `(n, height, width)`; tables `(n, features)`, sequences
    `(n, steps, channels)`. The result is float32, or int64 for a model with an embedding.
    """

    normalizer: Normalizer
    input_shape: tuple[int, ...]

    def __call__(self, raw: Tensor | NDArray[Any] | list[Any]) -> Tensor:
        array = as_array(raw)
        if array.ndim == len(self.input_shape) and self.input_shape[0] == 1:
            array = array[..., np.newaxis]
        scaled = self.normalizer(array)
        if scaled.shape[1:] != self.input_shape:
            raise ValueError(
                f"inputs of shape {tuple(np.shape(raw))} are not those of the model: it takes {self.input_shape}"
            )
        return torch.from_numpy(scaled).to(raw.device if isinstance(raw, Tensor) else "cpu")


def load_normalizer(folder: Folder) -> InputNormalizer:
    """Return a function that normalizes raw inputs as the run's model expects: `model(normalize(array))`.

    Args:
        folder: the run's folder, or its result.
    """
    return input_normalizer(read_model_facts(RunFolder(Path(folder))))


def input_normalizer(facts: ModelFacts) -> InputNormalizer:
    """Return the normalizer that a model's metadata holds."""
    mean, std = np.array(facts.mean, dtype=np.float32), np.array(facts.std, dtype=np.float32)
    return InputNormalizer(Normalizer(mean, std, facts.keeps_integers), schema_of(facts).input_shape)


def client_state(folder: Folder) -> dict[str, State]:
    """Return what each client of a run keeps between rounds, by its name or number: Ditto's `own` models, ….

    Vectors are flat, in the order of the model's parameters; convolutions have their input channels last. They are
    of the last round, also where validation data has selected an earlier model. Clients that never took part are
    left out.

    Args:
        folder: the run's folder, or its result.
    """
    run_folder = RunFolder(Path(folder))
    if not run_folder.checkpoints.exists():
        missing = f"{run_folder.path} holds no run: there is no {run_folder.checkpoints.name} in it"
        raise FileNotFoundError(missing + runs_below(run_folder.path))
    partition = run_folder.partition()
    states = read_clients(run_folder.checkpoints)
    return {str(k) if partition is None else partition.client_name(k): state for k, state in states.items()}
