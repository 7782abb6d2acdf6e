"""Laws of methods that fix, realign or calibrate the classifier."""

from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.core.frames import simplex, sparse_frame
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.losses.fedloge import FedLoGeLoss
from fedwcm.losses.rucr import RUCRLoss
from fedwcm.methods.ccvr import CCVR
from fedwcm.methods.fed3r import Fed3R
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedetf import FedETF
from fedwcm.methods.fedloge import FedLoGe
from fedwcm.methods.fedncm import FedNCM
from fedwcm.methods.fednpc import FedNPC
from fedwcm.methods.head import head_of
from fedwcm.methods.rucr import RUCR
from fedwcm.methods.tau_norm import TauNorm
from tests.factories import clusters, make_rounds, make_trainer, mlp, run_rounds
from tests.losses.builders import batch_of, context_of, numbers, value, view_of


def trained(method: Method, rounds: int = 2, loss: Loss | None = None) -> tuple[Rounds, ServerState]:
    data = clusters()
    training = make_trainer(method, data.federation, mlp(), loss=loss or CrossEntropy())
    simulated = make_rounds(training, data.federation)
    return simulated, run_rounds(simulated, rounds)[-1][0]


def head(simulated: Rounds, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    matrix, width = head_of(x, simulated.trainer.forward.network.layout)
    return matrix[:, :width], matrix[:, width:]


@pytest.mark.parametrize("method", [TauNorm(tau=1.0), FedNPC(noise_samples=100), FedLoGe()])
def test_training_does_not_see_the_evaluated_head(method: Method) -> None:
    simulated, state = trained(method)
    plain = trained(FedAvg())[1]
    assert torch.equal(state.x, plain.x)
    evaluated = simulated.last_model(state)[0]
    changed = (evaluated != state.x).nonzero()
    parts = simulated.trainer.forward.network.layout.head_slices
    assert len(changed)
    assert parts[0].start <= int(changed.min())
    assert int(changed.max()) < parts[-1].stop


def test_tau_norm_makes_rows_equally_long_and_keeps_their_mean_and_direction() -> None:
    simulated, state = trained(TauNorm(tau=1.0))
    before, after = (head(simulated, x) for x in (state.x, simulated.last_model(state)[0]))
    norms = before[0].norm(dim=-1)
    torch.testing.assert_close(after[0].norm(dim=-1), norms.mean().expand(len(norms)))
    torch.testing.assert_close(torch.cosine_similarity(before[0], after[0]), torch.ones_like(norms))
    assert not after[1].any()
    off = TauNorm(tau=0.0).eval_params(state.x, state.method)
    torch.testing.assert_close(head(simulated, off)[0], before[0])


def test_fedloge_realigns_weights_and_keeps_the_bias() -> None:
    simulated, state = trained(FedLoGe(), loss=FedLoGeLoss())
    (weight, bias), (own, own_bias) = (head(simulated, x) for x in (simulated.last_model(state)[0], state.x))
    torch.testing.assert_close(weight, 1.7 * own / own.norm(dim=-1, keepdim=True))
    assert torch.equal(bias, own_bias)


def test_noise_makes_the_head_indifferent() -> None:
    simulated, state = trained(FedNPC(noise_steps=20, noise_samples=2000))
    biased = state.x.clone()
    start = simulated.trainer.forward.network.layout.head_slices[-1].start
    biased[start] += 5.0
    before, after = (
        head(simulated, x)[1] for x in (biased, simulated.trainer.method.eval_params(biased, state.method))
    )
    assert float(after.max() - after.min()) < 0.5 * float(before.max() - before.min())


def test_the_simplex_is_equiangular() -> None:
    for classes, width in ((3, 2), (5, 9), (10, 10)):
        rows = simplex(classes, width)
        expected = np.full((classes, classes), -1 / (classes - 1))
        np.fill_diagonal(expected, 1.0)
        np.testing.assert_allclose(rows @ rows.T, expected, atol=1e-12)
    crowded = simplex(10, 4)
    assert np.linalg.norm(crowded, axis=1) == pytest.approx(1.0)
    assert (crowded @ crowded.T - 2 * np.eye(10)).max() < 0.6  # random rows reach 0.9


def test_a_sparse_frame_has_its_norm_its_zeros_and_wide_angles() -> None:
    rows = sparse_frame(10, 32, 0.6, 0.1)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 0.1)
    assert (rows == 0).mean() == pytest.approx(0.6, abs=0.04)
    unit = rows / 0.1
    assert (unit @ unit.T - 2 * np.eye(10)).max() < 0.1  # random rows reach 0.5


def test_fedetf_fixes_the_head_and_trains_the_rest() -> None:
    simulated, state = trained(FedETF())
    weight, bias = head(simulated, state.x)
    np.testing.assert_allclose(weight.numpy(), simplex(*weight.shape), atol=1e-7)
    assert not bias.any()
    start = simulated.start(*simulated.trainer.forward.network.initial())
    first = simulated.trainer.forward.network.layout.head_slices[0].start
    assert not torch.equal(state.x[:first], start.x[:first])


def test_the_frame_trains_the_features_and_the_head_follows_them() -> None:
    features = numbers(2, 4, 5).requires_grad_()
    outputs = view_of(features, 3)
    labels, ctx = torch.tensor([[0, 1, 2, 0], [2, 0, 0, 2]]), context_of([[9, 3, 1], [2, 0, 8]])
    losses, _ = value(FedLoGeLoss(), outputs, batch_of(labels), ctx)
    frame = torch.from_numpy(sparse_frame(3, 5, 0.6, 0.1))
    parts = [
        torch.nn.functional.cross_entropy(z.mT, labels, reduction="none").mean(1)
        for z in (features @ frame.T, outputs.logits)
    ]
    torch.testing.assert_close(losses, parts[0] + parts[1])
    (through,) = torch.autograd.grad(losses.sum(), features, retain_graph=True)
    (fixed,) = torch.autograd.grad(parts[0].sum(), features)
    torch.testing.assert_close(through, fixed)


def features_of_all(simulated: Rounds) -> tuple[np.ndarray, np.ndarray]:
    """The features of every client's samples at the initial model, with a 1 for the bias, and their labels."""
    shards = [simulated.federation.shard(k) for k in range(simulated.trainer.population.clients)]
    untrained = mlp()
    rows = np.concatenate([shard.rows for shard in shards])
    with torch.no_grad():
        features = untrained[:2](shards[0].store.inputs[torch.from_numpy(rows)])
    ones = np.ones((len(rows), 1))
    return np.concatenate([features.numpy(), ones], axis=1), np.concatenate([shard.labels for shard in shards])


def test_fed3r_is_the_ridge_regression_of_all_clients_data() -> None:
    simulated, state = trained(Fed3R(ridge=0.3, balanced=False), rounds=1)
    f, y = features_of_all(simulated)
    targets = np.eye(3)[y]
    expected = np.linalg.solve(f.T @ f + 0.3 * np.eye(f.shape[1]), f.T @ targets).T
    matrix = torch.cat(head(simulated, simulated.last_model(state)[0]), dim=-1)
    np.testing.assert_allclose(matrix.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_balanced_fed3r_does_not_depend_on_how_often_a_class_occurs() -> None:
    simulated, state = trained(Fed3R(ridge=0.3), rounds=1)
    f, y = features_of_all(simulated)
    v = len(y) / (3.0 * np.bincount(y))[y]
    expected = np.linalg.solve(
        (f * v[:, None]).T @ f + 0.3 * np.eye(f.shape[1]), (f * v[:, None]).T @ np.eye(3)[y]
    ).T
    matrix = torch.cat(head(simulated, simulated.last_model(state)[0]), dim=-1)
    np.testing.assert_allclose(matrix.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_fedncm_predicts_the_mean_with_the_largest_cosine() -> None:
    simulated, state = trained(FedNCM(), rounds=1)
    f, y = features_of_all(simulated)
    means = np.stack([f[y == c, :-1].mean(axis=0) for c in range(3)])
    weight, bias = head(simulated, simulated.last_model(state)[0])
    np.testing.assert_allclose(
        weight.numpy(), means / np.linalg.norm(means, axis=1)[:, None], rtol=1e-5, atol=1e-6
    )
    assert not bias.any()


def test_the_evaluated_backbone_is_the_one_that_the_sums_are_of() -> None:
    simulated, state = trained(FedNCM(), rounds=1)
    first = simulated.trainer.forward.network.layout.head_slices[0].start
    initial = Network(mlp()).initial()[0]
    assert torch.equal(simulated.last_model(state)[0][:first], initial[:first])
    assert not torch.equal(state.x[:first], initial[:first])


def test_ccvr_draws_from_the_gaussians_of_the_classes() -> None:
    method = CCVR(last=10, virtual=20_000)
    simulated, state = trained(method, rounds=1)
    f, y = features_of_all(simulated)
    sums = {key.removeprefix("sum/"): value for key, value in state.method.items() if key.startswith("sum/")}
    drawn, classes = method.virtual_features(sums, f.shape[1] - 1, np.random.default_rng(0))
    for c in range(3):
        own, virtual = f[y == c, :-1], drawn[classes == c].numpy()
        assert len(virtual) == 20_000
        np.testing.assert_allclose(virtual.mean(axis=0), own.mean(axis=0), atol=0.02)
        np.testing.assert_allclose(np.cov(virtual.T), np.cov(own.T, bias=True), atol=0.02)


def test_ccvr_waits_for_the_last_rounds() -> None:
    simulated, state = trained(CCVR(last=1), rounds=1)
    assert torch.equal(simulated.last_model(state)[0], state.x)
    assert not any(key.startswith("sum/") for key in state.method)


def test_rucr_sends_means_and_evaluates_a_head_trained_on_mixtures() -> None:
    simulated, state = trained(RUCR(last=10, mixtures=40, retrain_lr=0.3), rounds=1, loss=RUCRLoss())
    f, y = features_of_all(simulated)
    means = np.stack([f[y == c, :-1].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(state.method["means"].numpy(), means, rtol=1e-4, atol=1e-5)
    assert (state.method["directions"].norm(dim=-1) <= 1 + 1e-6).all()  # means of unit vectors
    weight, bias = head(simulated, simulated.last_model(state)[0])
    assert (state.method["directions"] @ weight.T + bias.T).argmax(dim=1).tolist() == [0, 1, 2]


def test_the_mean_of_a_class_of_one_sample_is_that_sample() -> None:
    data = clusters(sizes=(1,))
    simulated = make_rounds(make_trainer(RUCR(), data.federation, mlp()), data.federation)
    state = run_rounds(simulated, 1)[-1][0]
    f, y = features_of_all(simulated)
    np.testing.assert_allclose(state.method["means"][y].numpy(), f[:, :-1], rtol=1e-4, atol=1e-5)


def test_rucr_retrains_a_bias_as_the_weight_of_a_feature_that_is_1() -> None:
    """Features of 0 leave the biases alone: one step of cross-entropy with as many samples of each class."""
    simulated, state = trained(RUCR(), rounds=1)
    method = RUCR(mixtures=4, retrain_epochs=1, retrain_lr=0.3)
    context: Any = simulated.trainer.forward.network  # a layout is all that it reads
    weight, bias = head(simulated, state.x)
    features = weight.new_zeros(3, 4, weight.shape[1])
    retrained = method.retrain_head(state.x, features, context, np.random.default_rng(0))
    np.testing.assert_allclose(retrained[:, :-1].numpy(), weight.numpy())
    step = torch.softmax(bias[:, 0], dim=0) - 1 / 3
    np.testing.assert_allclose(retrained[:, -1].numpy(), (bias[:, 0] - 0.3 * step).numpy(), rtol=1e-5)


def test_rucr_waits_for_the_last_rounds() -> None:
    simulated, state = trained(RUCR(last=1), rounds=1)
    assert torch.equal(simulated.last_model(state)[0], state.x)


def test_rucr_contrasts_features_with_the_means_of_the_clients_classes() -> None:
    features, means = numbers(2, 4, 5), numbers(3, 5, seed=7)
    counts = np.array([[9, 3, 1], [2, 0, 8]])
    labels, ctx = torch.tensor([[0, 1, 2, 0], [2, 0, 0, 2]]), context_of(counts.tolist(), message={"means": means})
    outputs = view_of(features, 3)
    losses, _ = value(RUCRLoss(contrast=0.5, temperature=0.7), outputs, batch_of(labels), ctx)
    plain, _ = value(RUCRLoss(contrast=0.0), outputs, batch_of(labels), ctx)
    share, unit = counts.sum(axis=0) / counts.sum(), (means / means.norm(dim=-1, keepdim=True)).numpy()
    for k in range(2):
        expected = []
        for i, label in enumerate(labels[k].tolist()):
            f = features[k, i].numpy()
            u = np.where(counts[k] > 0, unit @ f / np.linalg.norm(f) / 0.7, 0.0)
            u[label] += np.log(share[label])
            expected.append(np.log(np.exp(u).sum()) - u[label])
        assert float(losses[k] - plain[k]) == pytest.approx(0.5 * np.mean(expected))
