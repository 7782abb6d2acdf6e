"""Losses that see other models than the one in training: MOON's last one, FedProto's class means."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwcm.core.batch import Outputs
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.losses.fedproto import FedProtoLoss
from fedwcm.losses.moon import Moon
from fedwcm.methods.fedavg import FedAvg
from tests import factories
from tests.losses.builders import batch_of, context_of, numbers, view_of

COUNTS = [[9, 3, 1], [2, 0, 8]]
LABELS = [[0, 1, 2, 0], [2, 0, 0, 2]]


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def test_moons_contrast_is_that_of_the_paper() -> None:
    features, received, last = (numbers(2, 4, 5, seed=k) for k in range(3))
    plain, ctx = view_of(features, 3), context_of(COUNTS)

    def at(x: Tensor) -> Outputs:
        return Outputs(plain.logits, received if x.dim() == 1 else last, plain.head, at)

    outputs = Outputs(plain.logits, features, plain.head, at)
    o = {"last": torch.zeros(2, 3), "trained": torch.tensor([1.0, 0.0], dtype=torch.float64)}
    loss, _ = Moon(mu=2.0, tau=0.3)(outputs, batch_of(LABELS), o, ctx)
    base, _ = CrossEntropy()(plain, batch_of(LABELS), {}, ctx)
    terms = []
    for f, near, far in zip(features[0], received[0], last[0], strict=True):
        a, b = np.exp(cosine(f, near) / 0.3), np.exp(cosine(f, far) / 0.3)
        terms.append(-np.log(a / (a + b)))
    np.testing.assert_allclose((loss - base).numpy(), [2.0 * np.mean(terms), 0.0], rtol=1e-10)


@pytest.mark.parametrize("stacked", [False, True])
def test_moon_begins_with_a_clients_second_round_and_keeps_its_last_model(stacked: bool) -> None:
    data = factories.clusters()
    models, ends = list[Tensor](), list[Any]()
    for loss in (CrossEntropy(), Moon(mu=3.0)):
        training = factories.make_trainer(FedAvg(), data.federation, factories.mlp(), loss=loss, stacked=stacked)
        simulated = factories.make_rounds(training, data.federation, block=64 if stacked else 1)
        models += [state.x for state, _ in factories.run_rounds(simulated, 2)]
        ends.append(simulated)
    plain, plain_second, first, second = models
    torch.testing.assert_close(plain, first)
    assert float((plain_second - second).abs().max()) > 1e-4
    kept = ends[1].store.read(np.arange(5), torch.device("cpu"))["loss/last"]
    weights = data.federation.samples / data.federation.samples.sum()
    torch.testing.assert_close(torch.from_numpy(weights) @ kept, second)


def test_fedproto_pulls_features_towards_known_means() -> None:
    features, means = numbers(2, 4, 5), numbers(3, 5, seed=9)
    outputs, known = view_of(features, 3), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    ctx = context_of(COUNTS, message={"means": means, "known": known})
    loss, _ = FedProtoLoss(pull=0.7)(outputs, batch_of(LABELS), {}, ctx)
    base, _ = CrossEntropy()(outputs, batch_of(LABELS), {}, ctx)
    expected = [
        0.7 * np.mean([((f - means[y]) ** 2).mean() * known[y] for f, y in zip(*pair, strict=True)])
        for pair in zip(features, LABELS, strict=True)
    ]
    np.testing.assert_allclose((loss - base).numpy(), expected, rtol=1e-10)
