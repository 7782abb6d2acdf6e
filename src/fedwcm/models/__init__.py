"""Models: built by name, with initial weights that depend on a seed only.

    model = build_model("resnet18", input_shape=(3, 32, 32), classes=10, seed=0, norm="group")

A model of your own is named as `package.module:factory`, where `factory` is a function or a class that
gives an `nn.Module` from inputs (batch, *input_shape) to scores (batch, classes). The current directory is
searched too. If its signature names `input_shape` or `classes`, it is called with them; the options come
on top:

    def factory(input_shape, classes, depth=3): ...   # factory(input_shape=..., classes=..., depth=...)
    def factory(num_classes): ...                     # factory(num_classes=...), from the options alone
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedwcm.models.base import Classifier
from fedwcm.models.checks import (
    has_embedding,
    require_input_shape,
    require_known,
    require_positive,
    require_scores,
)
from fedwcm.models.cnn import CNN
from fedwcm.models.factory import arguments, importable_current_directory, load_factory
from fedwcm.models.mlp import MLP
from fedwcm.models.resnet import resnet8, resnet18, resnet34

__all__ = ["MODELS", "Classifier", "build_model", "default_model", "has_embedding"]

MODELS: dict[str, Callable[..., Classifier]] = {
    "mlp": MLP,
    "cnn": CNN,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet34": resnet34,
}


def build_model(name: str, input_shape: tuple[int, ...], classes: int, seed: int, **options: Any) -> nn.Module:
    """Return the model `name` for samples of `input_shape`, on the CPU and in the mode it was built in.

    `name` is a key of `MODELS` or `package.module:factory` (see the module docstring). The initial weights
    depend on `seed` only, and the global random state of torch stays as it was. A wrong name, option or
    value, or a model that does not give `classes` scores, is a ValueError.
    """
    require_input_shape(input_shape)
    require_positive("classes", classes)
    # Only the CPU generator is forked and seeded: weights are made there, and CUDA stays uninitialised.
    with importable_current_directory(), torch.random.fork_rng(devices=[]):
        builder = _builder(name)
        keywords = arguments(name, builder, {"input_shape": input_shape, "classes": classes}, options)
        # Seeded after the import above, which may draw random numbers the first time but not the second.
        torch.default_generator.manual_seed(seed)
        model = builder(**keywords)
        if not isinstance(model, nn.Module):
            raise ValueError(f"model {name!r} gives the type {type(model).__name__}: allowed is a torch.nn.Module")
        require_scores(name, model, input_shape, classes)
    return model


def default_model(input_shape: tuple[int, ...]) -> str:
    """Return the model to use where none is named: "cnn" for images that are coloured or above 28x28.

    Smaller grey images, and anything that is not an image, get "mlp".
    """
    require_input_shape(input_shape)
    if len(input_shape) != 3:
        return "mlp"
    channels, *sides = input_shape
    return "cnn" if channels > 1 or max(sides) > 28 else "mlp"


def _builder(name: str) -> Callable[..., object]:
    if ":" in name:
        return load_factory(name)
    require_known("model", name, [*MODELS, "package.module:factory"])
    return MODELS[name]
