"""Laws of methods that fix, realign or calibrate the classifier."""

import numpy as np
import pytest
import torch

from fedwcm.core.frames import simplex, sparse_frame
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.losses.fedloge import FedLoGeLoss
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedetf import FedETF
from fedwcm.methods.fedloge import FedLoGe
from fedwcm.methods.fednpc import FedNPC
from fedwcm.methods.head import head_of
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
