"""Counting many steps at once gives what counting each of them does."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, SampleStore
from fedwcm.engine import training_metrics
from fedwcm.engine.training_metrics import TrainingMetrics
from fedwcm.methods import METHODS

from ..factories import ENGINES, Bench, clusters, linear, make_rounds, make_trainer, run_rounds

K, CLASSES = 4, 3
EMPTY = SampleStore(torch.zeros(1), torch.zeros(1), torch.zeros(1), np.zeros(1, dtype=np.int64))


def steps() -> list[tuple[Tensor, Tensor, Batch]]:
    """Steps of ever fewer clients, some of them padded."""
    rng = torch.Generator().manual_seed(0)
    made = []
    for active, width, padded in [
        (4, 5, False),
        (4, 5, False),
        (4, 3, True),
        (3, 5, True),
        (3, 5, False),
        (1, 2, False),
    ]:
        labels = torch.randint(CLASSES, (active, width), generator=rng)
        weight = torch.ones(active, width, dtype=torch.float64)
        weight[:, width - 1 :] = 0.0 if padded else 1.0
        batch = Batch(torch.zeros(active, width), labels, weight if padded else None, labels, EMPTY)
        logits = torch.randn(active, width, CLASSES, generator=rng, dtype=torch.float64, requires_grad=True)
        made.append((torch.rand(active, generator=rng, dtype=torch.float64, requires_grad=True), logits, batch))
    return made


@pytest.mark.parametrize("held", [0, 100, 2**20])
def test_losses_and_accuracies_are_means_over_the_steps_of_each_client(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_metrics, "HELD", held)
    counted, taken = TrainingMetrics(K), np.array([6, 5, 5, 3])
    loss, accuracy = np.zeros(K), np.zeros(K)
    for losses, logits, batch in steps():
        counted.add(losses, logits, batch)
        for k in range(len(losses)):
            present = slice(None) if batch.weight is None else batch.weight[k] > 0
            hits = (logits[k].argmax(dim=-1) == batch.labels[k])[present]
            loss[k] += losses[k].item()
            accuracy[k] += hits.double().mean().item()
    for _ in range(2):  # asking does not change the answer
        found = counted.means(taken)
        np.testing.assert_allclose(found[0], loss / taken, rtol=1e-12)
        np.testing.assert_allclose(found[1], accuracy / taken, rtol=1e-12)


def test_a_round_records_the_means_over_its_clients_and_the_entropy_of_their_weights() -> None:
    data, method = clusters(), METHODS["fedavg"]()
    alone = Bench(method, data, linear(), lr=0.1, round_=0).train()
    rounds = make_rounds(make_trainer(method, data.federation, linear()), data.federation, lr=0.1)
    [(_, record)] = run_rounds(rounds, 1)
    share = data.federation.samples / data.federation.samples.sum()
    assert record.train_loss == pytest.approx(alone.loss.mean(), rel=1e-12)
    assert record.train_accuracy == pytest.approx(alone.accuracy.mean(), rel=1e-12)
    assert record.weights_entropy == pytest.approx(-(share * np.log(share)).sum(), rel=1e-12)


@pytest.mark.parametrize("way", ENGINES)
def test_a_round_that_is_not_recorded_trains_the_same_model_and_counts_no_hits(way: str) -> None:
    data, method = clusters(), METHODS["fedavg"]()
    rounds = make_rounds(
        make_trainer(method, data.federation, linear(), stacked=ENGINES[way].stacked),
        data.federation,
        block=ENGINES[way].block,
        workers=ENGINES[way].workers,
    )
    try:
        start = rounds.start(*rounds.trainer.forward.network.initial())
        (state, record), (same, short) = rounds.step(start), rounds.step(start, recorded=False)
    finally:
        rounds.backend.close()
    assert torch.equal(state.x, same.x)
    assert short == replace(record, train_accuracy=None, clients=None, weights=None) != record


def test_what_waits_holds_no_graph() -> None:
    counted = TrainingMetrics(K)
    for losses, logits, batch in steps():
        counted.add(losses, logits, batch)
    waiting = [tensor for step in counted._waiting for tensor in step if tensor is not None]
    assert not any(tensor.requires_grad for tensor in waiting)
