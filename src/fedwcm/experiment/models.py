"""The model that a configuration names, or that was given as an object."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedwcm.config.resolve import importable_current_directory, resolve
from fedwcm.config.schema import Component
from fedwcm.core.torch_rng import own_torch_generator
from fedwcm.models import build_model, default_model

ModelFactory = Callable[..., nn.Module]
WEIGHTS = "weights"
IDENTITY = ("parameters", "layout", WEIGHTS)
"""What a run records of a model of the user's besides its options: see `_identity`."""


def chosen_model(
    chosen: Component,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
) -> tuple[nn.Module, Component]:
    """Return the model, and the name and options under which it is recorded.

    Args:
        chosen: the name of a model, or `package.module:factory`, and its options; `auto` chooses by the input.
            Or a module or a factory.
        input_shape: the shape of one sample.
        classes: number of scores that the model must return.
        seed: seed of the initial weights, unless a module has its own.
    """
    name = default_model(input_shape) if chosen.name == "auto" else chosen.name
    model: nn.Module | ModelFactory | None = chosen.value
    if model is None and ":" not in name:
        return build_model(name, input_shape, classes, seed, **chosen.options), replace(chosen, name=name)
    options = {key: value for key, value in chosen.options.items() if key not in IDENTITY}
    # A factory may import when it is called, and what is imported may draw random numbers.
    with importable_current_directory(), own_torch_generator():
        if model is None:
            model = resolve("model", chosen)
            if isinstance(model, type) and not issubclass(model, nn.Module):
                raise ValueError(f"model {name!r} is a class, but not a torch.nn.Module: it is not called")
        module = build_model(model, input_shape, classes, seed, **options)
    identity = _identity(module, own_weights=isinstance(model, nn.Module))
    return module, replace(chosen, options=options | identity)


def _identity(module: nn.Module, *, own_weights: bool) -> dict[str, object]:
    """Return what tells a module of the user's from others of its name: its size, and digests.

    The layers have one, and the weights if the module starts from its own and not from those of the run's seed.
    """
    tensors = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    shapes = [f"{name} {tuple(value.shape)}" for name, value in tensors.items()]
    layers = re.sub(r" at 0x[0-9a-f]+", "", str(module))  # a function's address is another in every process
    size = sum(parameter.numel() for parameter in module.parameters())
    identity: dict[str, object] = {"parameters": size, "layout": _digest("\n".join([layers, *shapes]).encode())}
    if own_weights:
        flat = (value.cpu().reshape(-1).view(torch.uint8) for value in tensors.values())
        identity[WEIGHTS] = _digest(*(value.numpy().tobytes() for value in flat))
    return identity


def _digest(*parts: bytes) -> str:
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(part)
    return total.hexdigest()
