"""Whether the models of a network can be stacked: they are tried on a tiny batch, before the first round."""

import warnings

import torch
from torch import Tensor

from fedwcm.core.torch_rng import own_torch_generator
from fedwcm.engine.fast.linear_layers import linear_layers
from fedwcm.engine.fast.linear_stack import LinearStack
from fedwcm.engine.forward import Forward, SequentialForward, VmapForward
from fedwcm.engine.network import Network

SLOW = "There is a performance drop because we have not yet implemented the batching rule"
"""How torch's warning begins that it runs an operation for one model after the other."""

TOLERANCE = 1e-3
ROUNDINGS = 8
"""Steps of a 16-bit format by which gradients may differ instead, if training is in such a format."""


def stacked_forward(network: Network) -> Forward:
    """Return the fastest way to run many models of this network at a time."""
    return LinearStack(network) if linear_layers(network) else VmapForward(network)


def stacking_problem(network: Network, inputs: Tensor) -> str | None:
    """Return why models of this network cannot be stacked, None if they can.

    Two models are tried on the first of these inputs `(b, …)`, padded as a short batch is. There is a problem if
    an operation has no batching rule (as in recurrent layers) or only a slow one, if it draws random numbers, or
    if gradients differ from those that the models have one at a time, as with BatchNorm, which feels the padding.
    """
    x, buffers = network.initial()
    padded = torch.cat([inputs[:1], torch.zeros_like(inputs[:1])])
    models, batches = torch.stack([x, 0.9 * x]), torch.stack([padded, padded])
    try:
        with warnings.catch_warnings(), own_torch_generator():
            warnings.filterwarnings("error", message=SLOW)
            together = _gradients(stacked_forward(network), x, buffers, models, batches)
            one = SequentialForward(network)
            alone = [_gradients(one, x, buffers, models[k : k + 1], batches[:1, :1]) for k in range(len(models))]
    except Exception as error:  # the model is the user's: it may fail in any way
        return " ".join(str(error).split()) or type(error).__name__
    finally:
        SequentialForward(network).start(x, buffers)  # the module holds the initial model again
    difference = float((together - torch.cat(alone)).abs().max())
    tolerance = max(TOLERANCE, ROUNDINGS * torch.finfo(network.precision.dtype).eps)
    close = difference <= tolerance * (1.0 + float(together.abs().max()))
    return None if close else f"gradients of stacked models differ by {difference:.2g}"


def _gradients(forward: Forward, x: Tensor, buffers: Tensor, models: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradients of the scores of each model's first sample."""
    forward.start(x, buffers)
    logits = forward(models, inputs, track=False).logits
    first = torch.zeros_like(logits)
    first[:, 0] = 1.0
    return forward.backward((logits, first)).vector()
