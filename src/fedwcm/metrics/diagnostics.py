"""Diagnostics that are measured while a model is tested: see docs/diagnostics.md."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwcm.core.types import Floats, Ints, Vec
from fedwcm.engine.federation import Federation
from fedwcm.engine.network import Network
from fedwcm.metrics.classification import ShotRule, shot_groups
from fedwcm.metrics.concentration import ActivationRecorder, layer_concentration, mean_concentration


def mean_angle(rows: Floats) -> float | None:
    """Return the mean angle in degrees over all pairs of rows, without rows of zeros; None if there is no pair."""
    from scipy.spatial.distance import pdist  # here: most runs do not need scipy

    directed = rows[np.abs(rows).max(axis=1, initial=0) > 0]
    if len(directed) < 2:
        return None
    cosines = 1 - pdist(directed.astype(float), metric="cosine")
    return float(np.degrees(np.arccos(np.clip(cosines, -1, 1))).mean())


@contextmanager
def diagnosing(
    wanted: Collection[str], network: Network, labels: Tensor, train_counts: Ints, rule: ShotRule = "range"
) -> Iterator[dict[str, object]]:
    """Yield a record that is filled from the evaluation inside the block, which must keep the order of samples."""
    record: dict[str, object] = {}
    if "concentration" not in wanted:
        yield record
        return
    with ActivationRecorder(network, labels, len(train_counts)) as recorder:
        yield record
    layers = {name: layer_concentration(means) for name, means in recorder.means().items()}
    record["concentration"] = mean_concentration(layers)
    record["concentration_layers"] = layers
    record.update(_angles(network, train_counts, rule))


def _angles(network: Network, train_counts: Ints, rule: ShotRule) -> dict[str, object]:
    """Mean angles between the classifier's rows, over all classes and over those with few samples."""
    if network.head is None or network.head.out_features != len(train_counts):
        return {"classifier_angle": None, "minority_angle": None}
    rows: Floats = network.head.weight.detach().cpu().double().numpy()
    few = shot_groups(train_counts, rule).get("few", np.empty(0, dtype=np.int64))
    return {"classifier_angle": mean_angle(rows), "minority_angle": mean_angle(rows[few])}


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
