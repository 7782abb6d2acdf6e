"""BatchNorm: its statistics follow the first gradient of a step, and nothing else."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedwcm
from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.types import Context, State
from fedwcm.engine.evaluate import evaluate
from fedwcm.engine.network import Network
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedcm import FedCM

from ..factories import IMAGE, SIZES, Bench, clusters, conv_batchnorm, make_rounds, make_trainer, run_rounds
from ..specimens import ByAutograd, FullGradient, Sam, the_long_way

DATA = clusters(shape=IMAGE)
ONE_STEP: dict[str, Any] = {"epochs": 1, "batch_size": 100}


def statistics_after_one_pass(client: int) -> torch.Tensor:
    """Running mean and variance of the plain module after one forward pass over a client's data."""
    module = conv_batchnorm().train()
    module(torch.from_numpy(DATA.inputs[DATA.parts[client]]))
    norm = next(m for m in module.modules() if isinstance(m, nn.BatchNorm2d))
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return torch.cat([norm.running_mean, norm.running_var])


def test_the_first_gradient_moves_the_statistics_as_a_plain_module_would() -> None:
    buffers = Bench(FedAvg(), DATA, conv_batchnorm(), **ONE_STEP).train().upload["buffers"]
    for row, client in zip(buffers, (2, 4, 0, 3, 1), strict=True):
        np.testing.assert_allclose(row.numpy(), statistics_after_one_pass(client).numpy(), rtol=1e-12)
        assert not torch.allclose(row, conv_batchnorm().state_dict()["1.running_var"].repeat(2))


def test_a_second_gradient_in_a_step_does_not_move_the_statistics() -> None:
    plain, twice = (
        Bench(method, DATA, conv_batchnorm(), **ONE_STEP).train() for method in (FedAvg(), Sam(rho=2.0))
    )
    assert torch.equal(twice.upload["buffers"], plain.upload["buffers"])
    assert not torch.allclose(twice.upload["delta"], plain.upload["delta"])


def test_over_many_steps_a_second_gradient_at_the_same_point_changes_nothing() -> None:
    plain, twice = (
        Bench(method, DATA, conv_batchnorm()).train() for method in (the_long_way(FedAvg)(), Sam(rho=0.0))
    )
    assert torch.equal(twice.upload["buffers"], plain.upload["buffers"])
    assert torch.equal(twice.upload["delta"], plain.upload["delta"])


class Peeking(CrossEntropy):
    """Looks at the received model on every batch, as distillation does."""

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[torch.Tensor, State]:
        outputs.at(ctx.x * 1.5)
        return super().__call__(outputs, batch, o, ctx)


def test_looking_at_another_model_does_not_move_the_statistics() -> None:
    plain, peeking = (Bench(FedAvg(), DATA, conv_batchnorm(), loss=o).train() for o in (ByAutograd(), Peeking()))
    assert torch.equal(peeking.upload["buffers"], plain.upload["buffers"])
    assert torch.equal(peeking.upload["delta"], plain.upload["delta"])


def test_probing_does_not_move_the_statistics() -> None:
    bench = Bench(FullGradient(), DATA, conv_batchnorm())
    bench.run("probe", [0])
    assert torch.equal(bench.trainer.forward.buffers()[0], bench.sent.buffers)
    assert bench.sent.buffers.tolist() == [0.0] * 3 + [1.0] * 3


def test_every_client_starts_from_the_received_statistics() -> None:
    bench = Bench(FedAvg(), DATA, conv_batchnorm())
    together = bench.train([2, 0]).upload["buffers"]
    again = bench.train([0, 2]).upload["buffers"]
    assert torch.equal(together, again.flip(0))


@pytest.mark.parametrize("method", [FedAvg(average="uniform"), FedCM()], ids=["fedavg", "fedcm"])
def test_the_server_averages_the_statistics_by_samples_whatever_the_method_does(method: FedAvg | FedCM) -> None:
    training = make_trainer(method, DATA.federation, conv_batchnorm())
    state, _ = run_rounds(make_rounds(training, DATA.federation, lr=0.2), 1)[0]
    each = Bench(method, DATA, conv_batchnorm(), round_=0).train(range(5)).upload["buffers"]
    share = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    np.testing.assert_allclose(state.buffers.numpy(), (share @ each).numpy(), rtol=1e-12)
    assert not torch.allclose(state.buffers, each.mean(dim=0), rtol=1e-3)


def test_evaluation_uses_the_statistics_and_leaves_them_alone() -> None:
    network = Network(conv_batchnorm())
    x, _ = network.initial()
    buffers = torch.tensor([0.5, -0.5, 0.1, 2.0, 0.3, 1.0], dtype=torch.float64)
    before = buffers.clone()
    inputs, labels = torch.from_numpy(DATA.inputs), torch.from_numpy(DATA.labels)
    tested = evaluate(network, x, buffers, inputs, labels, 3)
    module = conv_batchnorm().eval()
    module.load_state_dict(network.state_dict(x, before))
    logits = module(inputs)
    assert torch.equal(buffers, before)
    assert tested.loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-12)
    expected = np.zeros((3, 3), dtype=np.int64)
    np.add.at(expected, (DATA.labels, logits.argmax(dim=-1).numpy()), 1)
    np.testing.assert_array_equal(tested.confusion, expected)


def test_statistics_that_the_user_put_into_evaluation_mode_stay() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 3, 60)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 3))
    module[1].running_mean.fill_(0.5)
    module[1].eval()
    options: Any = {"clients": 3, "beta": 1.0, "participation": 1.0, "rounds": 2, "epochs": 1, "batch_size": 10}
    ended = fedwcm.run("fedavg", dataset=(x, y), model=module, **options).model.state_dict()
    assert torch.equal(ended["1.running_mean"], torch.full((6,), 0.5))
    assert not torch.equal(ended["3.running_mean"], torch.zeros(6))
