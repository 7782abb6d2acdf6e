"""`fedwcm.load` and `fedwcm.normalizer`: the trained model of a run, and the inputs that it takes."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwcm.api.types import ModelLike
from fedwcm.config.models import chosen_model
from fedwcm.data.normalize import Normalizer
from fedwcm.data.objects import as_array
from fedwcm.runs.folder import Record, RunFolder


def load(folder: str | Path, *, model: ModelLike | None = None, trust: bool = False) -> nn.Module:
    """The trained model of a run, in evaluation mode. It takes normalised inputs: see `normalizer`.

    Args:
        folder: the run's folder.
        model: what takes the trained weights, a module, a factory or `package.module:factory`; needed if the run
            was given an object, or names a factory and is not to be trusted.
        trust: import the factory that the folder names as `package.module:factory`.
    """
    return trained(Path(folder), model, trust)[0]


def trained(folder: Path, model: ModelLike | None, trust: bool) -> tuple[nn.Module, Record]:
    """The trained model of a run, and what it takes to use it."""
    run_folder = RunFolder(folder)
    facts = model_facts(run_folder)
    shape, classes = facts["input_shape"], facts["classes"]
    assert isinstance(shape, list)
    assert isinstance(classes, list)
    chosen = run_folder.config().model
    if isinstance(model, str):
        chosen, model, trust = replace(chosen, name=model), None, True
    module, _ = chosen_model(chosen, model, tuple(shape), len(classes), 0, trusted=trust)
    try:
        module.load_state_dict(run_folder.model()[0])
    except RuntimeError as error:
        raise ValueError(f"this model does not fit the weights in {folder}: {error}") from error
    return module.eval(), facts


def model_facts(folder: RunFolder) -> Record:
    """What it takes to use a run's model; an error if there is none."""
    if not (folder.path / "model.safetensors").exists():
        raise FileNotFoundError(f"{folder.path} holds no finished run: there is no model.safetensors in it")
    return folder.model()[1]


@dataclass(frozen=True, eq=False)
class InputNormalizer:
    """Raw inputs to those that a run's model takes: normalised, images with the channels first.

    Takes arrays, tensors and nested lists, and returns what went in. Images are `(n, height, width, channels)`, in
    tensors also `(n, channels, height, width)`, grey ones also `(n, height, width)`; tables `(n, features)`.
    """

    normalizer: Normalizer
    input_shape: tuple[int, ...]

    @overload
    def __call__(self, raw: Tensor) -> Tensor: ...
    @overload
    def __call__(self, raw: NDArray[Any]) -> NDArray[np.float32]: ...
    @overload
    def __call__(self, raw: list[Any]) -> list[Any]: ...
    def __call__(self, raw: Tensor | NDArray[Any] | list[Any]) -> Tensor | NDArray[np.float32] | list[Any]:
        array = as_array(raw)
        if array.ndim == len(self.input_shape) and self.input_shape[0] == 1:
            array = array[..., np.newaxis]
        scaled = self.normalizer(array)
        if scaled.shape[1:] != self.input_shape:
            raise ValueError(
                f"inputs of shape {tuple(np.shape(raw))} are not those of the model: it takes {self.input_shape}"
            )
        if isinstance(raw, Tensor):
            return torch.from_numpy(scaled).to(raw.device)
        return scaled.tolist() if isinstance(raw, list) else scaled


def normalizer(folder: str | Path) -> InputNormalizer:
    """What turns raw inputs (images, tables) into those that the model of a run takes.

    Args:
        folder: the run's folder.
    """
    return input_normalizer(model_facts(RunFolder(Path(folder))))


def input_normalizer(facts: Record) -> InputNormalizer:
    """The normaliser that a model's metadata holds."""
    mean, std, shape = facts["mean"], facts["std"], facts["input_shape"]
    assert isinstance(shape, list)
    return InputNormalizer(Normalizer(np.float32(mean), np.float32(std)), tuple(shape))  # type: ignore[arg-type]
