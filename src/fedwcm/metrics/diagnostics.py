"""Diagnostics that are measured while a model is tested: see docs/diagnostics.md."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from fedwcm.core.types import Floats, Ints
from fedwcm.engine.network import Network
from fedwcm.metrics.angles import mean_angle
from fedwcm.metrics.classification import ShotRule, shot_groups
from fedwcm.metrics.concentration import ActivationRecorder, layer_concentration, mean_concentration


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
