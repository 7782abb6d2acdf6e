"""Models: built by name, with initial weights that depend only on a seed.

    model = build_model("resnet18", input_shape=(3, 32, 32), classes=10, seed=0, norm="group")

Your own model is a function or a class that returns an `nn.Module` from inputs (batch, *input_shape) to scores
(batch, classes). If its signature names `input_shape`, `classes` or `num_classes`, it is called with them, and
with the options:

    def factory(input_shape, classes, depth=3): ...   # factory(input_shape=..., classes=..., depth=...)
    def factory(num_classes): ...                     # factory(num_classes=...)
    lambda shape, n: nn.Linear(shape[0], n)           # factory(input_shape, classes)

A module instance is copied, and starts from its current weights.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fedwcm.core.checks import require_count, require_known
from fedwcm.core.torch_rng import own_torch_generator
from fedwcm.models.base import Classifier
from fedwcm.models.checks import has_embedding, require_input_shape, require_scores
from fedwcm.models.cnn import CNN
from fedwcm.models.mlp import MLP
from fedwcm.models.resnet import resnet8, resnet18, resnet34

BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def call(
    name: str,
    factory: Callable[..., object],
    input_shape: tuple[int, ...],
    classes: int,
    options: Mapping[str, Any],
) -> object:
    """Call a factory with the arguments that its signature names, and all `options` as keywords.

    `input_shape`, and `classes` or `num_classes`, are passed if the signature names them. `**kwargs` receives
    options but none of these, because a factory that forwards its keywords may not accept them. A factory that
    names none of them and has exactly two required arguments gets the shape and the number of classes.
    """
    offered = {"input_shape": input_shape, "classes": classes, "num_classes": classes}
    parameters = inspect.signature(factory).parameters
    named = [key for key, parameter in parameters.items() if parameter.kind in BY_KEYWORD]
    positional = () if set(named) & set(offered) else _nameless(parameters, options)
    if inspect.Parameter.VAR_KEYWORD not in [parameter.kind for parameter in parameters.values()]:
        for option in options:
            require_known(f"option of model {name!r}:", option, [key for key in named if key not in offered])
    values = (input_shape, classes)[: len(positional)]
    keywords = {key: value for key, value in offered.items() if key in named} | dict(options)
    try:
        return factory(*values, **keywords)
    except TypeError as error:
        arguments = "(input_shape, classes)" if values else ", ".join(keywords) or "no arguments"
        raise ValueError(
            f"model {name!r} cannot be made from {arguments}, here {input_shape} and {classes}: {error}; allowed "
            "are an nn.Module, and a function or class that takes input_shape and classes"
        ) from error


def _nameless(parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the two required positional parameters of a factory; none if there are not exactly two."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = tuple(
        key
        for key, parameter in parameters.items()
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty and key not in options
    )
    return needed if len(needed) == 2 else ()


__all__ = ["MODELS", "MODEL_OPTIONS", "Classifier", "build_model", "default_model", "has_embedding"]

MODELS: dict[str, Callable[..., Classifier]] = {
    "mlp": MLP,
    "cnn": CNN,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet34": resnet34,
}

MODEL_OPTIONS = {
    "hidden": ("a list, each a whole number", "widths of the hidden layers; an empty list is softmax regression."),
    "width": ("a whole number", "channels of the first block, or stage; later ones have multiples of it."),
    "norm": ("'group' or 'batch'", "normalisation: `group` has no statistics to average over clients."),
    "groups": ("a whole number", "groups of the `group` norm; must divide `width`."),
    "stem": ("'imagenet' or 'cifar'", "7x7 convolution of stride 2 and a pool (`imagenet`), or 3x3 of stride 1."),
    "head": ("'linear' or 'cosine'", "the classifier: `linear`, or `cosine` of features and class vectors."),
}
"""The options of these models: what is allowed, and the meaning."""


def build_model(
    model: str | nn.Module | Callable[..., object],
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    **options: Any,
) -> nn.Module:
    """Return the model for samples of `input_shape`, on the CPU and in the mode it was built in.

    `model` is a key of `MODELS`, a function or class (see the module docstring), or a module to copy. The initial
    weights of a model that is built here depend only on `seed`, and torch's global random state is unchanged.
    Raises ValueError for a wrong name, option or value, or if the model does not return `classes` scores.
    """
    require_input_shape(input_shape)
    require_count("classes", classes)
    if isinstance(model, nn.Module):
        return _copy(model, input_shape, classes, options)
    name = model if isinstance(model, str) else str(getattr(model, "__qualname__", type(model).__name__))
    if isinstance(model, str):
        require_known("model", model, [*MODELS, "package.module:factory"])
        model = MODELS[model]
    # Only the CPU generator is forked and seeded: weights are created there, and CUDA stays uninitialised.
    with own_torch_generator():
        torch.default_generator.manual_seed(seed)
        built = call(name, model, input_shape, classes, options)
        if not isinstance(built, nn.Module):
            raise ValueError(f"model {name!r} gives the type {type(built).__name__}: allowed is a torch.nn.Module")
        require_scores(name, built, input_shape, classes)
    return built


def _copy(module: nn.Module, input_shape: tuple[int, ...], classes: int, options: dict[str, Any]) -> nn.Module:
    name = type(module).__name__
    for option in options:
        raise ValueError(f"model.{option} is not an option of {name}: this model is already built")
    module = copy.deepcopy(module).cpu()
    require_scores(name, module, input_shape, classes)
    return module


def default_model(input_shape: tuple[int, ...]) -> str:
    """Return the default model: "cnn" for images that are coloured or larger than 28x28, else "mlp"."""
    require_input_shape(input_shape)
    if len(input_shape) != 3:
        return "mlp"
    channels, *sides = input_shape
    return "cnn" if channels > 1 or max(sides) > 28 else "mlp"
