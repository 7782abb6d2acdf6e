"""The model that a configuration names, or that was given as an object."""

import hashlib

import torch
from torch import nn

from fedwcm.config.objects import ModelFactory
from fedwcm.config.resolve import importable_current_directory, resolve
from fedwcm.config.schema import Component
from fedwcm.models import build_model, default_model


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
    if isinstance(given, nn.Module):
        options = {key: value for key, value in chosen.options.items() if key not in ("parameters", "layout")}
        module = build_model(given, input_shape, classes, seed, **options)
        return module, Component(chosen.name, layout(module))
    name = default_model(input_shape) if chosen.name == "auto" else chosen.name
    # A factory may import when it is called, and what is imported may draw random numbers.
    with importable_current_directory(), torch.random.fork_rng(devices=[]):
        if given is None and ":" in name:
            given = resolve("model", name, trusted=trusted)
            if isinstance(given, type) and not issubclass(given, nn.Module):
                raise ValueError(f"model {name!r} is a class, but not a torch.nn.Module: it is not called")
        module = build_model(given or name, input_shape, classes, seed, **chosen.options)
    return module, Component(name, chosen.options)


def layout(module: nn.Module) -> dict[str, object]:
    """Return what identifies a module besides its class: its number of parameters, and a digest of its layout."""
    shapes = [f"{name} {tuple(value.shape)}" for name, value in module.state_dict().items()]
    digest = hashlib.blake2b("\n".join(shapes).encode(), digest_size=8).hexdigest()
    return {"parameters": sum(parameter.numel() for parameter in module.parameters()), "layout": digest}
