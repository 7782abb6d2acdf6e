"""The model that a configuration names, or that was given as an object."""

import hashlib
import re

import torch
from torch import nn

from fedwcm.config.objects import ModelFactory
from fedwcm.config.resolve import importable_current_directory, resolve
from fedwcm.config.schema import Component
from fedwcm.models import build_model, default_model

IDENTITY = ("parameters", "layout")
"""What a run records of a model of the user's besides its options: see `identity`."""


def chosen_model(
    chosen: Component,
    given: nn.Module | ModelFactory | None,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    trusted: bool,
) -> tuple[nn.Module, Component]:
    """Return the model, and the name and options under which it is recorded.

    Args:
        chosen: the name of a model, or `package.module:factory`, and its options; `auto` chooses by the input.
        given: a module or a factory to use instead.
        input_shape: the shape of one sample.
        classes: number of scores that the model must return.
        seed: seed of the initial weights, unless a module has its own.
        trusted: whether a factory may be imported; see `fedwcm.config.resolve`.
    """
    name = default_model(input_shape) if chosen.name == "auto" else chosen.name
    if given is None and ":" not in name:
        return build_model(name, input_shape, classes, seed, **chosen.options), Component(name, chosen.options)
    options = {key: value for key, value in chosen.options.items() if key not in IDENTITY}
    # A factory may import when it is called, and what is imported may draw random numbers.
    with importable_current_directory(), torch.random.fork_rng(devices=[]):
        if given is None:
            given = resolve("model", name, trusted=trusted)
            if isinstance(given, type) and not issubclass(given, nn.Module):
                raise ValueError(f"model {name!r} is a class, but not a torch.nn.Module: it is not called")
        module = build_model(given, input_shape, classes, seed, **options)
    return module, Component(name, options | identity(module))


def identity(module: nn.Module) -> dict[str, object]:
    """Return what tells a module of the user's from others of its name: its size, and a digest of its layers."""
    shapes = [f"{name} {tuple(value.shape)}" for name, value in module.state_dict().items()]
    layers = re.sub(r" at 0x[0-9a-f]+", "", str(module))  # a function's address is another in every process
    digest = hashlib.blake2b("\n".join([layers, *shapes]).encode(), digest_size=8).hexdigest()
    return {"parameters": sum(parameter.numel() for parameter in module.parameters()), "layout": digest}
