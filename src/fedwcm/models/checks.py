"""Checks of the arguments of models: each error names the field, the value and what is allowed."""

import warnings
from typing import Any

import torch
from torch import nn

from fedwcm.core.checks import require, shorten


def require_input_shape(input_shape: tuple[int, ...]) -> None:
    """Raise ValueError unless `input_shape` is the shape of one sample, every side at least 1."""
    allowed = "(features,) or (channels, height, width), every side at least 1"
    require(bool(input_shape) and min(input_shape) >= 1, "input_shape", input_shape, allowed)


def image_shape(input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (channels, height, width), or raise ValueError if the input is not an image."""
    allowed = "(channels, height, width) for a convolutional model, which takes images; for tables use 'mlp'"
    require(len(input_shape) == 3, "input_shape", input_shape, allowed)
    channels, height, width = input_shape
    return channels, height, width


def require_scores(name: str, model: nn.Module, input_shape: tuple[int, ...], classes: int) -> None:
    """Raise ValueError unless `model` maps a batch of inputs to one score per class.

    A model whose output holds them as `.logits`, as Hugging Face's do, gets a hook that returns these alone. One
    with an embedding may take integers: it is tried on these if it rejects floats. The trial batch runs in eval
    mode, so BatchNorm statistics stay as they are. Each module then gets its own mode back: a user's model may
    hold some of its modules in eval mode on purpose.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            scores = _trial_scores(model, input_shape)
    except Exception as error:
        kinds = sorted({str(p.dtype) for p in model.parameters() if p.is_floating_point()})
        if kinds not in ([], ["torch.float32"]):
            raise ValueError(
                f"model {name!r} has parameters of {', '.join(kinds)}: allowed is torch.float32, as the data are; "
                "convert it with model.float()"
            ) from error
        raise ValueError(f"model {name!r} fails on an input of shape {input_shape!r}: {error}") from error
    finally:
        for module, training in modes:
            module.training = training
    if hasattr(scores, "logits"):
        model.register_forward_hook(_return_logits)
        scores = scores.logits
    shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if shape != (2, classes):
        raise ValueError(
            f"model {name!r} gives {shape} for a batch of 2 inputs of shape {input_shape!r}: "
            f"allowed is (2, {classes}), one score for each of the classes={classes}"
        )
    assert isinstance(scores, torch.Tensor)
    _warn_of_probabilities(name, scores)


def _return_logits(module: nn.Module, arguments: object, output: Any) -> torch.Tensor:
    logits: torch.Tensor = output.logits
    return logits


def _warn_of_probabilities(name: str, scores: torch.Tensor) -> None:
    """Warn of a model that ends in Softmax or LogSoftmax: losses apply it themselves."""
    ones = torch.ones(len(scores), dtype=scores.dtype)
    for layer, shares in (("Softmax", scores), ("LogSoftmax", scores.exp())):
        if (
            scores.shape[1] > 1
            and bool((shares >= 0).all())
            and torch.allclose(shares.sum(dim=1), ones, atol=1e-4)
        ):
            warnings.warn(
                f"the outputs of model {name!r} are those of a final {layer}: losses take scores and apply it "
                "themselves, so leave that layer out",
                stacklevel=4,
            )


def require_copyable(module: nn.Module) -> None:
    """Raise ValueError for what a copy of a module would lose: gradient hooks, and a `forward` of the instance."""
    lost = [f"the gradient hook of {name}" for name, p in module.named_parameters() if p._backward_hooks]
    for name, part in module.named_modules():
        compiled = isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod")  # these can be copied
        if "forward" in vars(part) and not compiled:
            lost.append(f"the forward of {name or 'the model'}")
    if lost:
        raise ValueError(
            f"model {type(module).__name__}: a run trains a copy, which would lose {shorten(lost, 3)}: "
            "pass a function that makes the model, model=lambda input_shape, classes: …"
        )


def has_embedding(model: nn.Module) -> bool:
    """Return whether the model has an embedding."""
    return any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in model.modules())


def _trial_scores(model: nn.Module, input_shape: tuple[int, ...]) -> object:
    try:
        return model(torch.zeros(2, *input_shape))
    except Exception:
        if not has_embedding(model):
            raise
        return model(torch.zeros(2, *input_shape, dtype=torch.int64))
