"""FedYoYo: two views of a sample, distillation between them, and effective class sizes, against NumPy."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedwcm.core.batch import Batch, SampleStore
from fedwcm.losses.fedyoyo import FedYoYoLoss, holes
from fedwcm.methods.fedyoyo import FedYoYo
from fedwcm.testing import _engine, _start
from tests.losses.builders import batch_of, context_of, logits_view, numbers, value

COUNTS = np.array([[9, 3, 1], [2, 0, 8]])
LABELS = torch.tensor([[0, 1, 2, 0], [2, 0, 0, 2]])


def softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.exp(z) / np.exp(z).sum()
    return shares


def test_the_strong_view_learns_from_weak_views_that_are_right() -> None:
    shares, logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 2.0 * numbers(2, 8, 3, seed=8)
    logits[:, :2] += 4.0 * torch.eye(3)[LABELS[:, :2]] - 2.0  # the weak views of the first two are right
    logits[:, 2] -= 4.0 * torch.eye(3)[LABELS[:, 2]]
    weight = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 0]], dtype=torch.float64)
    rows = batch_of(LABELS, weight)
    batch = rows.with_view(rows.inputs)
    ctx = context_of(COUNTS.tolist(), round_=3, message={"shares": shares})
    loss = FedYoYoLoss(tau=0.8, gamma=0.25, distill=2.0, temperature=1.7, warmup=6)
    losses, _ = value(loss, logits_view(logits), batch, ctx)
    for k in range(2):
        prior = 0.75 * shares.numpy() + 0.25 * COUNTS[k] / COUNTS[k].sum()
        u, y = logits[k].numpy() + 0.8 * np.log(prior), LABELS[k].tolist()
        real = range(4 if k == 0 else 3)
        fit = np.mean([-np.log(softmax(u[i])[y[i % 4]]) for i in [*real, *(i + 4 for i in real)]])
        right = [i for i in real if u[i].argmax() == y[i]]
        pairs = [(softmax(u[i] / 1.7), softmax(u[i + 4] / 1.7)) for i in right]
        taught = np.mean([(t * np.log(t / s)).sum() for t, s in pairs])
        assert 0 < len(right) < len(real)
        assert float(losses[k]) == pytest.approx(fit + 2.0 * 0.5 * taught)


def test_a_plain_batch_has_nothing_to_distil() -> None:
    outputs, ctx = logits_view(numbers(2, 4, 3)), context_of(COUNTS.tolist(), round_=99)
    plain, both = (value(FedYoYoLoss(distill=d), outputs, batch_of(LABELS), ctx)[0] for d in (0.0, 4.0))
    assert torch.equal(plain, both)


def test_a_square_is_blanked_in_the_second_view_alone() -> None:
    images = torch.ones(2, 5, 3, 8, 6)
    y = torch.zeros(2, 5, dtype=torch.int64)
    store = SampleStore(images[0], y[0], y[0], y[0].numpy())
    rngs = [np.random.default_rng(k) for k in range(2)]
    batch = FedYoYoLoss(hole=0.5).views(Batch(images, y, None, y, store), rngs)
    weak, strong = batch.inputs.chunk(2, dim=1)
    assert torch.equal(weak, images)
    assert batch.labels.shape == (2, 10)
    blank = strong[:, :, 0] == 0
    assert torch.equal(blank[:, :, None].expand_as(strong), strong == 0)  # the same in every channel
    for one in blank.flatten(0, 1):
        rows, columns = one.any(dim=1), one.any(dim=0)
        assert torch.equal(one, rows[:, None] & columns)
        assert 1 <= int(rows.sum()) <= 4
        assert 1 <= int(columns.sum()) <= 3
    assert holes((400, 50), 0.5, rngs[0]).mean() == pytest.approx(0.25, abs=0.02)


def test_a_hole_has_the_size_that_it_is_asked_to_have_and_is_cut_off_at_the_edge() -> None:
    blank = holes((500, 1, 8, 6), 0.5, np.random.default_rng(0))[:, 0]
    rows, columns = blank.any(axis=2).sum(axis=1), blank.any(axis=1).sum(axis=1)
    assert (rows.max(), columns.max()) == (4, 3)
    assert np.bincount(rows)[4] > 250  # five of eight centres leave room for four rows
    assert blank.any(axis=0).all()  # every place is blanked now and then


def test_what_is_blanked_in_a_sample_does_not_depend_on_the_others_of_its_batch() -> None:
    for shape in ((1, 8, 6), (50,)):
        many, few = (holes((size, *shape), 0.5, np.random.default_rng(0)) for size in (9, 3))
        assert np.array_equal(many[:3], few)
        assert not np.array_equal(few[0], few[1])


def test_effective_sizes_are_those_of_the_formula() -> None:
    method = FedYoYo(group=7, memory=0.6)
    engine = _engine(method, FedYoYoLoss())
    state, expected = _start(engine), np.zeros(3)
    for _ in range(2):
        network, before = engine.trainer.forward.network, state
        state, record = engine.step(state)
        assert record.clients is not None
        network.point_parameters(before.x)
        now = np.ones(3)
        for client in record.clients:
            shard = engine.federation.shard(client)
            f = network(shard.store.inputs[torch.from_numpy(shard.rows)])[1].detach().double().numpy()
            for c in range(3):
                f[shard.labels == c] -= f[shard.labels == c].mean(axis=0) if (shard.labels == c).any() else 0.0
            unit = f / np.maximum(np.linalg.norm(f, axis=1, keepdims=True), 1e-12)
            for start in range(0, len(f), 7):
                for c in range(3):
                    own = unit[start : start + 7][shard.labels[start : start + 7] == c]
                    if len(own):
                        correlation = np.ones(len(own)) @ (own @ own.T) @ np.ones(len(own)) / len(own) ** 2
                        now[c] += min(len(own), 1.0 / max(correlation, 1e-12))
        expected = 0.6 * expected + 0.4 * now if expected.any() else now
        np.testing.assert_allclose(state.method["effective"].numpy(), expected, rtol=1e-3)


def test_the_factors_of_its_loss_undo_its_shift() -> None:
    """What a trained model presupposes is known: batches times factors are equally frequent classes."""
    ctx = context_of(COUNTS.tolist())
    factors = FedYoYoLoss(gamma=1.0, tau=1.0).class_factors(ctx)
    shares = COUNTS / COUNTS.sum(axis=1, keepdims=True)
    np.testing.assert_allclose((shares * factors)[COUNTS > 0], 1 / 3)
    np.testing.assert_allclose(FedYoYoLoss(gamma=1.0, tau=0.0).class_factors(ctx), 1.0)
