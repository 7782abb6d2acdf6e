"""The global model on all training samples: loss, accuracy, and the gradient norm that theory bounds."""

import torch
from torch.nn.functional import cross_entropy

from fedwcm.core.types import Vec
from fedwcm.engine.federation import Federation
from fedwcm.engine.network import Network


def train_set_metrics(network: Network, federation: Federation, x: Vec, buffers: Vec) -> dict[str, object]:
    """Return f(x), the accuracy, and ‖∇f(x)‖², for f the mean cross-entropy over the samples of all clients.

    The model is in evaluation mode: without dropout, augmentation and weight decay. Its logits are on the scale
    of the loss.
    """
    network.point_parameters(x.clone())
    network.point_buffers(buffers.clone())
    network.module.eval()
    parameters = [parameter for _, parameter in network.parameters]
    gradient, loss, correct = torch.zeros_like(x), 0.0, 0
    for client in range(len(federation.samples)):
        shard = federation.shard(client)
        rows = torch.from_numpy(shard.rows).to(network.device)
        labels = shard.store.labels[rows]
        logits = network.predict(shard.store.inputs[rows])
        total = cross_entropy(logits, labels, reduction="sum")
        slopes = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
        gradient += network.layout.flatten(list(slopes))
        loss += float(total.detach())
        correct += int((logits.argmax(dim=-1) == labels).sum())
    samples = int(federation.samples.sum())
    return {
        "train_set_loss": loss / samples,
        "train_set_accuracy": correct / samples,
        "gradient_norm_squared": float((gradient / samples).double().square().sum()),
    }
