"""The local training loop: which steps are taken, on which batches, and that blocks change nothing."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedwcm.core.method import Method
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Vec
from fedwcm.engine.client import ClientUpdates
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedwcm import FedWCMX
from fedwcm.methods.scaffold import SCAFFOLD

from ..factories import (
    BY_STEPS,
    ENGINES,
    IMAGE,
    SIZES,
    Bench,
    Clusters,
    clusters,
    divided,
    headless,
    linear,
    make_rounds,
    make_trainer,
    mlp,
    population,
    run_rounds,
)
from ..specimens import Counter, Growing, Push, Sam, Scaled, Seen, Shift, global_torch_rng_untouched, the_long_way

EXACT: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-13}
ONE_STEP: dict[str, Any] = {"epochs": 1, "batch_size": 100}


def assert_same(one: ClientUpdates, other: ClientUpdates) -> None:
    for mine, theirs in ((one.upload, other.upload), (one.state, other.state)):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            np.testing.assert_allclose(value.numpy(), theirs[key].numpy(), err_msg=key, **EXACT)
    assert one.report.keys() == other.report.keys()
    for key, numbers in one.report.items():
        np.testing.assert_allclose(numbers, other.report[key], err_msg=key, **EXACT)
    for name in ("learning_rates", "loss", "accuracy"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **EXACT)


# --- blocks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FedAvg(), FedWCMX(), Counter(), Sam()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("build", [linear, mlp])
def test_stacked_clients_train_as_each_would_alone(method: Method, build: Any) -> None:
    data = clusters()
    options: dict[str, Any] = {"weight_decay": 0.03, "clip": 0.5, "loss": Seen()}
    together = Bench(method, data, build(), stacked=True, **options).train()
    apart = Bench(method, data, build(), **options).train()
    assert_same(together, apart)
    assert len(set(together.loss)) == len(SIZES)


def test_what_an_objective_prepares_stays_with_its_client() -> None:
    data = clusters()
    together, apart = (
        Bench(FedAvg(), data, mlp(), stacked=stacked, loss=Scaled()).train() for stacked in (True, False)
    )
    assert_same(together, apart)
    plain = Bench(FedAvg(), data, mlp(), **ONE_STEP).train()
    scaled = Bench(FedAvg(), data, mlp(), loss=Scaled(), **ONE_STEP).train()
    np.testing.assert_allclose(scaled.loss / plain.loss, 1.0 + np.array(BY_STEPS), **EXACT)


def test_augmentation_is_drawn_by_address_sample_by_sample_and_step_by_step() -> None:
    data = clusters()
    together, apart = (
        Bench(FedAvg(), data, linear(), stacked=stacked, augmentation=Shift()).train() for stacked in (True, False)
    )
    assert_same(together, apart)
    rows, labels = data.inputs[data.parts[1]], data.labels[data.parts[1]]
    order = generator(5, Purpose.BATCHES, 2, 1).permutation(7)
    shift = generator(5, Purpose.AUGMENT, 2, 1).integers(-2, 3, size=(1, 100, 1))[0, :7]
    shifted = torch.from_numpy(rows[order] + shift)
    expected = cross_entropy(linear()(shifted), torch.from_numpy(labels[order])).item()
    loss = Bench(FedAvg(), data, linear(), augmentation=Shift(), **ONE_STEP).train([1]).loss[0]
    assert loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("blocks", [[[2], [4, 0], [3, 1]], [[2, 4, 0, 3], [1]], [[2, 1], [0, 3], [4]]])
def test_the_composition_of_blocks_changes_nothing(blocks: list[list[int]]) -> None:
    data = clusters()
    bench = Bench(FedWCMX(), data, mlp(), stacked=True)
    whole = bench.train()
    for block in blocks:
        rows = [BY_STEPS.index(client) for client in block]
        part = bench.train(block)
        np.testing.assert_allclose(part.upload["delta"].numpy(), whole.upload["delta"][rows].numpy(), **EXACT)
        np.testing.assert_allclose(part.loss, whole.loss[rows], **EXACT)


def test_the_order_of_clients_with_equally_many_steps_changes_nothing() -> None:
    data = clusters(sizes=(20, 24, 17, 9))
    bench = Bench(FedAvg(), data, mlp(), stacked=True)
    one, other = (bench.train(order) for order in ([0, 1, 2, 3], [2, 0, 1, 3]))
    np.testing.assert_allclose(other.upload["delta"].numpy(), one.upload["delta"][[2, 0, 1, 3]].numpy(), **EXACT)


def test_a_block_that_is_not_longest_first_is_refused() -> None:
    data = clusters()
    with pytest.raises(ValueError, match="longest first"):
        Bench(FedAvg(), data, mlp(), stacked=True).train([1, 2])


def test_the_sample_that_padding_reads_is_not_felt() -> None:
    results = []
    for content in (0.0, 1e3):
        data = clusters()
        data.federation.shard(0).store.inputs[0] = content  # row 0 belongs to nobody
        results.append(Bench(FedAvg(), data, mlp(), stacked=True).train())
    assert torch.equal(results[0].upload["delta"], results[1].upload["delta"])
    np.testing.assert_array_equal(results[0].loss, results[1].loss)
    np.testing.assert_array_equal(results[0].accuracy, results[1].accuracy)


# --- steps and batches -------------------------------------------------------------------------------


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("epochs", "batch_size"), [(1, 8), (3, 10), (2, 100), (2, 1)])
def test_a_client_takes_epochs_times_the_ceiling_of_n_over_b_steps(
    epochs: int, batch_size: int, stacked: bool
) -> None:
    data = clusters()
    options: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "loss": Seen()}
    result = Bench(Counter(), data, linear(), stacked=stacked, **options).train()
    expected = [epochs * int(np.ceil(SIZES[client] / batch_size)) for client in BY_STEPS]
    assert result.report["steps"].tolist() == expected
    assert result.state["loss/seen"].tolist() == expected
    known = population(data.federation, epochs, batch_size)
    assert known.local_steps(np.array(SIZES)[BY_STEPS]).tolist() == expected


@pytest.mark.parametrize("stacked", [False, True])
def test_every_epoch_visits_every_sample_of_the_client_once_in_batches_of_b(stacked: bool) -> None:
    data, objective = clusters(), Seen()
    Bench(FedAvg(), data, linear(), stacked=stacked, loss=objective).train()
    for client, part in enumerate(data.parts):
        batches = [ids for who, ids in objective.batches if who == client]
        half = len(batches) // 2
        assert [len(ids) for ids in batches[: half - 1]] == [8] * (half - 1)
        first, second = list(chain(*batches[:half])), list(chain(*batches[half:]))
        assert sorted(first) == sorted(second) == part.tolist()
        assert first != second


STEPS = 7


@pytest.mark.parametrize("stacked", [False, True])
def test_a_fixed_number_of_steps_goes_on_into_further_passes(stacked: bool) -> None:
    data, objective = clusters(), Seen()
    options: dict[str, Any] = {"epochs": None, "steps": STEPS, "loss": objective}
    result = Bench(Counter(), data, linear(), stacked=stacked, **options).train(range(len(SIZES)))
    assert result.report["steps"].tolist() == [STEPS] * len(SIZES)
    for client, part in enumerate(data.parts):
        batches = [ids for who, ids in objective.batches if who == client]
        per_pass = -(-len(part) // 8)
        assert len(batches) == STEPS
        for start in range(0, STEPS, per_pass):
            visited = list(chain(*batches[start : start + per_pass]))
            assert len(set(visited)) == len(visited) == min(len(part), 8 * (STEPS - start))
            assert set(visited) <= set(part.tolist())


def test_so_many_steps_as_epochs_would_make_are_the_same_training() -> None:
    data, largest = clusters(), BY_STEPS[0]
    steps = 3 * -(-SIZES[largest] // 8)
    by_epochs = Bench(FedAvg(), data, mlp(), epochs=3).train([largest])
    by_steps = Bench(FedAvg(), data, mlp(), epochs=None, steps=steps).train([largest])
    assert torch.equal(by_epochs.upload["delta"], by_steps.upload["delta"])


def test_all_engines_agree_on_a_fixed_number_of_steps() -> None:
    data, ends = clusters(), []
    for way in ENGINES.values():
        training = make_trainer(SCAFFOLD(), data.federation, mlp(), stacked=way.stacked, epochs=None, steps=STEPS)
        engine = make_rounds(training, data.federation, block=way.block, workers=way.workers)
        ends.append(run_rounds(engine, 3)[-1][0].x)
    assert torch.allclose(ends[0], ends[1], **EXACT)
    assert torch.equal(ends[0], ends[2])


def test_an_objective_s_state_advances_once_in_a_step_of_two_gradients() -> None:
    data = clusters()
    for stacked in (False, True):
        result = Bench(Sam(), data, linear(), stacked=stacked, loss=Seen()).train()
        steps = 2 * np.ceil(np.array(SIZES)[BY_STEPS] / 8)
        np.testing.assert_array_equal(result.state["loss/seen"].numpy(), steps)


def test_all_gradients_of_a_step_see_the_objective_s_state_from_before_it() -> None:
    data = clusters()
    once, twice = (Bench(m, data, mlp(), loss=Growing()).train() for m in (the_long_way(FedAvg)(), Sam(rho=0.0)))
    assert torch.equal(twice.upload["delta"], once.upload["delta"])
    constant = Bench(FedAvg(), data, mlp()).train()
    assert not torch.allclose(once.upload["delta"], constant.upload["delta"], rtol=1e-3)


# --- one step ----------------------------------------------------------------------------------------


def full_gradient(module: nn.Module, data: Clusters, client: int) -> Vec:
    rows = data.parts[client]
    loss = cross_entropy(module(torch.from_numpy(data.inputs[rows])), torch.from_numpy(data.labels[rows]))
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])


def test_weight_decay_acts_after_clipping() -> None:
    data = clusters()
    bench = Bench(FedAvg(), data, linear(), clip=0.05, weight_decay=0.7, stacked=True, **ONE_STEP)
    delta = bench.train().upload["delta"]
    for row, client in zip(delta, BY_STEPS, strict=True):
        g = full_gradient(linear(), data, client)
        assert g.norm() > 0.05
        expected = -0.2 * (g * 0.05 / g.norm() + 0.7 * bench.sent.x)
        np.testing.assert_allclose(row.numpy(), expected.numpy(), **EXACT)


@pytest.mark.parametrize("stacked", [False, True])
def test_clipping_bounds_each_client_s_direction_and_leaves_shorter_ones_alone(stacked: bool) -> None:
    data = clusters()
    bench = Bench(Push(), data, linear(), clip=3.0, stacked=stacked)
    push = torch.zeros_like(bench.sent.x)
    push[1] = -0.8  # client k is pushed (k + 1) times as far: 0.8, 1.6, 2.4, and from client 3 on 3.0
    delta = bench.train(message={"push": push}).upload["delta"]
    for row, client in zip(delta, BY_STEPS, strict=True):
        steps = 2 * np.ceil(SIZES[client] / 8)
        assert float(row[1]) == pytest.approx(0.2 * steps * min(0.8 * (client + 1), 3.0), rel=1e-12)
        assert row.abs().sum() == row[1].abs()


def test_a_direction_of_zero_is_clipped_to_zero() -> None:
    data = clusters()
    bench = Bench(Push(), data, linear(), clip=1.0)
    still = bench.train(message={"push": torch.zeros_like(bench.sent.x)}).upload["delta"]
    assert still.eq(0).all()


# --- what is measured --------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [0, 2])
def test_training_loss_and_accuracy_are_means_over_the_steps(client: int) -> None:
    """A hand-written SGD loop, with batches from their addresses, measured before every step."""
    data, module = clusters(), mlp()
    parameters = list(module.parameters())
    rng = generator(5, Purpose.BATCHES, 2, client)
    losses, accuracies = [], []
    for _ in range(2):
        order = data.parts[client][rng.permutation(SIZES[client])]
        for start in range(0, len(order), 8):
            rows = order[start : start + 8]
            logits, labels = module(torch.from_numpy(data.inputs[rows])), torch.from_numpy(data.labels[rows])
            loss = cross_entropy(logits, labels)
            for parameter, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.data -= 0.2 * g
            losses.append(loss.item())
            accuracies.append((logits.argmax(dim=-1) == labels).double().mean().item())
    result = Bench(FedAvg(), data, mlp()).train([client])
    assert result.loss[0] == pytest.approx(np.mean(losses), rel=1e-12)
    assert result.accuracy[0] == pytest.approx(np.mean(accuracies), rel=1e-12)
    local = torch.cat([p.detach().reshape(-1) for p in parameters])
    x = torch.cat([p.detach().reshape(-1) for p in mlp().parameters()])
    np.testing.assert_allclose(result.upload["delta"][0].numpy(), (local - x).numpy(), **EXACT)


def test_the_training_loss_is_that_of_the_first_gradient_of_a_step() -> None:
    data = clusters()
    plain, twice = (Bench(m, data, mlp(), stacked=True, **ONE_STEP).train() for m in (FedAvg(), Sam(rho=3.0)))
    np.testing.assert_array_equal(twice.loss, plain.loss)
    assert not torch.allclose(twice.upload["delta"], plain.upload["delta"])


# --- models of every kind ----------------------------------------------------------------------------


def test_dropout_draws_by_address_and_leaves_the_global_generator_alone() -> None:
    data = clusters(sizes=(20, 20))
    bench = Bench(FedAvg(), data, mlp(dropout=0.5))
    with global_torch_rng_untouched():
        first = bench.train([0, 1]).upload["delta"]
    torch.rand(3)  # wherever the global generator stands
    again = bench.train([1, 0]).upload["delta"]
    assert torch.equal(first, again.flip(0))
    without = Bench(FedAvg(), data, mlp(dropout=0.0)).train([0, 1]).upload["delta"]
    assert not torch.allclose(first, without)


def test_dropout_differs_between_seeds_rounds_and_clients() -> None:
    """One step on a batch of one sample many times over: only dropout makes a difference."""
    whole = clusters(sizes=(20,))
    copies = np.full(20, 3)
    data = divided(whole.inputs, whole.labels, [copies, copies])
    losses = [
        Bench(FedAvg(), data, mlp(dropout=0.5), seed=seed, round_=round_, **ONE_STEP).train([client]).loss[0]
        for seed, round_, client in ((5, 2, 0), (6, 2, 0), (5, 3, 0), (5, 2, 1))
    ]
    assert len({round(loss, 6) for loss in losses}) == 4


@pytest.mark.parametrize("stacked", [False, True])
def test_a_model_without_a_linear_layer_trains(stacked: bool) -> None:
    bench = Bench(FedAvg(), clusters(shape=IMAGE), headless(), stacked=stacked)
    assert bench.trainer.forward.network.head is None
    assert (bench.train().upload["delta"].norm(dim=-1) > 1e-3).all()
