"""Laws of BalanceFL's objective, of Fed-GraB's, and of the server that goes with the latter."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwcm.core.batch import Outputs
from fedwcm.core.types import Cohort, Context, Layout
from fedwcm.engine.client import Broadcast
from fedwcm.engine.forward import SequentialForward
from fedwcm.engine.network import Network
from fedwcm.engine.oracle import BlockData
from fedwcm.engine.uploads import UploadRows
from fedwcm.losses.balancefl import BalanceFL
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.losses.grab import GraB
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedgrab import FedGraB, class_shares
from tests.factories import Scripted, clusters, linear, make_rounds, make_trainer, mlp, run_rounds
from tests.losses.builders import batch_of, context, context_of, logits_view, numbers, slope, value, view_of

# --- BalanceFL ------------------------------------------------------------------------------------------


def naive_balancefl(
    outputs: Outputs, labels: Sequence[int], lambda_: float, temperature: float, entropy: float
) -> float:
    """The formula for one client without augmentation, by selecting columns."""
    present = sorted(set(labels))
    absent = [c for c in range(outputs.logits.shape[-1]) if c not in present]
    z, t = outputs.logits[0], outputs.at(torch.zeros(0)).logits[0]
    own = z[:, present].log_softmax(dim=1)
    fit = -own[range(len(labels)), [present.index(y) for y in labels]].mean()
    target = (t[:, absent] / temperature).softmax(dim=1)
    kept = -(target * (z[:, absent] / temperature).log_softmax(dim=1)).sum(dim=1).mean()
    return float(fit + lambda_ * kept - entropy * -(own.exp() * own).sum())


@pytest.mark.parametrize("labels", [[0, 3, 3], [1, 1, 1], [0, 1, 2, 3]])
def test_balancefl_is_its_formula(labels: list[int]) -> None:
    outputs = view_of(numbers(1, len(labels), 5), 5)
    objective = BalanceFL(lambda_=0.7, temperature=3.0, entropy=0.05, draws=0)
    losses, _ = value(objective, outputs, batch_of([labels]), context_of([[5, 4, 3, 2, 1]]))
    assert float(losses) == pytest.approx(naive_balancefl(outputs, labels, 0.7, 3.0, 0.05), rel=1e-12)


def test_distillation_has_nothing_to_say_where_all_classes_are_present() -> None:
    features, ctx = numbers(1, 3, 5), context_of([[3, 2, 1]])
    labels = torch.tensor([[0, 1, 2]])
    strong, off = (slope(BalanceFL(lambda_=lam, draws=0), features, labels, None, ctx) for lam in (1e3, 0.0))
    torch.testing.assert_close(strong, off)


def test_distillation_does_not_pull_at_a_model_that_is_the_received_one() -> None:
    """Its value is then the received model's own entropy over the absent classes, its slope 0."""
    logits = numbers(1, 3, 5).requires_grad_()
    batch, ctx = batch_of([[0, 1, 0]]), context_of([[3, 2, 1, 1, 1]])
    ends = []
    for lambda_ in (0.0, 1.0):
        losses, _ = value(BalanceFL(lambda_=lambda_, draws=0), logits_view(logits), batch, ctx)
        ends.append((losses.item(), torch.autograd.grad(losses.sum(), logits)[0]))
    p = (logits[0, :, 2:].detach() / 2.0).softmax(dim=1)
    assert ends[1][0] - ends[0][0] == pytest.approx(float(-(p * p.log()).sum(dim=1).mean()), rel=1e-12)
    torch.testing.assert_close(ends[1][1], ends[0][1])


def test_a_different_received_model_pulls_at_absent_classes_alone() -> None:
    logits = numbers(1, 2, 4).requires_grad_()
    other = Outputs(numbers(1, 2, 4, seed=5), logits, lambda f: f, lambda x: other)
    outputs = Outputs(logits, logits, lambda f: f, lambda x: other)
    objective = BalanceFL(lambda_=1.0, entropy=0.0, draws=0)
    losses, _ = value(objective, outputs, batch_of([[2, 2]]), context_of([[1, 1, 2, 1]]))
    (own,) = torch.autograd.grad(losses.sum(), logits)
    assert not own[..., 2].any()  # alone in its softmax
    assert own[..., [0, 1, 3]].abs().min() > 0


def test_entropy_is_a_sum_over_the_batch() -> None:
    logits = torch.zeros(1, 6, 3, dtype=torch.float64)
    ctx, batch = context_of([[2, 2, 2]]), batch_of([[0, 1, 2, 0, 1, 2]])
    with_, without = (
        value(BalanceFL(entropy=e, draws=0), logits_view(logits), batch, ctx)[0] for e in (0.01, 0.0)
    )
    assert float(without - with_) == pytest.approx(0.01 * 6 * math.log(3), rel=1e-9)


def prepared(draws: int) -> tuple[Context, Tensor, list[Tensor]]:
    """The context of two clients with what a round prepares, and each one's features and labels."""
    data = clusters(sizes=(41, 30), classes=3)
    objective, forward = BalanceFL(draws=draws), SequentialForward(Network(mlp()))
    training = make_trainer(FedAvg(), data.federation, mlp(), loss=objective)
    x, buffers = forward.network.initial()
    forward.start(x, buffers)
    noise, features = [], []
    for k in range(2):
        shards = [data.federation.shard(k)]
        ctx = context(x, training.clients(np.array([k]), shards), training.population)
        local = BlockData(shards, forward, objective, {}, ctx)
        made = objective.prepare(local, ctx)
        noise.append(made["noise"][0])
        features.append(local.outputs(x[None], next(local.batches())).features[0])
    labels = [torch.from_numpy(data.federation.shard(k).labels) for k in range(2)]
    return (
        ctx,
        torch.stack(noise),
        [torch.cat([f, y[:, None]], dim=1) for f, y in zip(features, labels, strict=True)],
    )


def test_noise_has_the_mean_covariance_within_classes() -> None:
    _, noise, samples = prepared(draws=40_000)
    for own, table in zip(noise.numpy(), samples, strict=True):
        features, labels = table[:, :-1].numpy(), table[:, -1].numpy()
        wanted = np.zeros((features.shape[1], features.shape[1]))
        for c in np.unique(labels):
            rows = features[labels == c]
            if len(rows) > 1:
                wanted += len(rows) / len(features) * np.cov(rows.T)
        error = np.linalg.norm(np.cov(own.T) - wanted) / np.linalg.norm(wanted)
        assert error < 0.03
        assert np.abs(own.mean(axis=0)).max() < 5 * math.sqrt(wanted.max() / len(own))


def test_noise_is_the_clients_and_the_rounds_own() -> None:
    ctx, noise, _ = prepared(draws=3)
    _, again, _ = prepared(draws=3)
    assert torch.equal(noise, again)
    assert not torch.allclose(noise[0], noise[1])
    assert ctx.prepared == {}


def test_noise_is_the_same_from_features_in_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    data, objective = clusters(sizes=(41, 30), classes=3), BalanceFL(draws=3)
    training, forward = (
        make_trainer(FedAvg(), data.federation, mlp(), loss=objective),
        SequentialForward(Network(mlp())),
    )
    x, _ = forward.network.initial()
    shards = [data.federation.shard(0)]
    ctx = context(x, training.clients(np.array([0]), shards), training.population)
    whole = objective.prepare(BlockData(shards, forward, objective, {}, ctx), ctx)
    monkeypatch.setattr("fedwcm.engine.oracle.CHUNK", 4)
    torch.testing.assert_close(objective.prepare(BlockData(shards, forward, objective, {}, ctx), ctx), whole)


def captured(labels: Tensor, counts: list[int], chance: Tensor, position: int = 0) -> Tensor:
    """The noise that reached the head: vector j of the ring is constant j + 1."""
    draws = len(chance)
    noise = torch.arange(1.0, draws + 1, dtype=torch.float64)[None, :, None].expand(1, draws, 2)
    ctx = replace(context_of([counts]), prepared={"noise": noise, "chance": chance[None]})
    seen: list[Tensor] = []
    features = torch.zeros(1, len(labels), 2, dtype=torch.float64)

    def head(other: Tensor) -> Tensor:
        seen.append(other)
        return other @ torch.ones(2, len(counts), dtype=torch.float64)

    outputs = Outputs(head(features), features, head, lambda x: outputs)
    state = {"position": torch.tensor([position])}
    _, after = value(BalanceFL(draws=draws), outputs, batch_of(labels[None]), ctx, state)
    assert int(after["position"]) == (position + len(labels)) % draws
    return seen[-1][0, :, 0]


def test_minority_classes_get_noise_with_the_right_probability() -> None:
    counts, draws = [20, 15, 5], 400
    chance = (torch.arange(draws) + 0.5) / draws
    for c, probability in enumerate([0.0, 0.25, 0.75]):
        noise = captured(torch.full((draws,), c), counts, chance)
        assert int((noise > 0).sum()) == round(probability * draws)


def test_samples_go_through_the_ring_in_turn() -> None:
    noise = captured(torch.tensor([1, 0, 1, 1]), [9, 1], torch.zeros(5, dtype=torch.float64), position=3)
    assert noise.tolist() == [4.0, 0.0, 1.0, 2.0]  # class 0 is the largest: its turn passes unused


def test_a_gradient_over_all_data_has_no_noise() -> None:
    """A method's first phase comes before anything is prepared."""
    data = clusters()
    forward = SequentialForward(Network(mlp()))
    x, buffers = forward.network.initial()
    forward.start(x, buffers)
    shards = [data.federation.shard(0)]
    training = make_trainer(FedAvg(), data.federation, mlp())
    ctx = context(x, training.clients(np.array([0]), shards), training.population)
    ends = []
    for draws in (0, 500):
        objective = BalanceFL(draws=draws)
        state = objective.init_client(ctx.clients, ctx.population)
        ends.append(BlockData(shards, forward, objective, state, ctx).gradient(x[None]))
    assert torch.equal(*ends)


# --- Fed-GraB: the objective ----------------------------------------------------------------------------


def balance(u: float, slope: float = 0.5) -> float:
    return (10 / 9) / (1 / 9 + math.exp(-slope * u))


def test_balancing_weights_are_one_at_rest_and_stay_between_0_and_10() -> None:
    objective = GraB()
    assert float(objective.balance(torch.zeros(()))) == 1.0
    outputs = torch.linspace(-30, 30, 601)
    weights = objective.balance(outputs)
    assert weights.diff().min() > 0
    assert 0 < float(weights.min()) < float(weights.max()) < 10
    far = objective.balance(torch.tensor([-1e6, 1e6]))
    assert 0 < float(far[0]) < 1e-10
    assert float(far[1]) == pytest.approx(10.0)
    assert float(objective.balance(torch.tensor(3.0))) == pytest.approx(balance(3.0))


def test_controllers_follow_a_scalar_computation() -> None:
    logits = torch.tensor([[[0.4, -1.0], [-0.2, 0.3], [1.1, 0.1]]], dtype=torch.float64)
    labels, ctx = [0, 1, 0], context_of([[2, 1]])
    objective = GraB(kp=2.0, ki=0.3, kd=0.7)
    errors, outputs = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [0.0, 0.0]
    state = objective.init_client(ctx.clients, ctx.population)
    for _ in range(5):
        loss, expected = 0.0, 0.0
        losses, state = value(objective, logits_view(logits), batch_of([labels]), ctx, state)
        for c in range(2):
            now, before, earlier = errors[c]
            outputs[c] += 2.0 * (now - before) + 0.3 * now + 0.7 * (now - 2 * before + earlier)
            pull = push = 0.0
            for i, y in enumerate(labels):
                p = 1 / (1 + math.exp(-float(logits[0, i, c])))
                weight = balance(outputs[c] if y == c else -outputs[c])
                expected += weight * -math.log(p if y == c else 1 - p) / 3
                pull += weight * (1 - p) / 3 if y == c else 0.0
                push += weight * p / 3 if y != c else 0.0
            errors[c] = [now + push - pull, now, before]
        loss = float(losses)
        assert loss == pytest.approx(expected, rel=1e-6)
        np.testing.assert_allclose(state["output"][0].numpy(), outputs, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(state["errors"][0].numpy().T, errors, rtol=1e-6, atol=1e-7)
    assert max(map(abs, outputs)) > 0.5


def test_slope_is_the_plain_one_times_the_weights() -> None:
    logits = numbers(1, 4, 3).requires_grad_()
    labels, ctx, objective = [0, 2, 0, 0], context_of([[3, 0, 1]]), GraB()
    state = {"output": torch.tensor([[-1.0, 4.0, 2.0]]), "errors": torch.zeros(1, 3, 3)}
    losses, after = value(objective, logits_view(logits), batch_of([labels]), ctx, state)
    (own,) = torch.autograd.grad(losses.sum(), logits)
    target = torch.eye(3, dtype=torch.float64)[labels]
    weights = torch.where(target > 0, objective.balance(state["output"]), objective.balance(-state["output"]))
    torch.testing.assert_close(own[0], weights * (logits.detach()[0].sigmoid() - target) / 4, check_dtype=False)
    torch.testing.assert_close(after["errors"][0, 0], own[0].sum(dim=0), check_dtype=False)


def test_a_class_that_is_pushed_more_than_pulled_is_helped() -> None:
    """A class that the client does not have is only ever pushed down: its controller lets it be."""
    logits, ctx = torch.zeros(1, 4, 2), context_of([[4, 0]])
    objective = GraB()
    state = objective.init_client(ctx.clients, ctx.population)
    for _ in range(3):
        _, state = value(objective, logits_view(logits), batch_of([[0, 0, 0, 0]]), ctx, state)
    assert float(state["output"][0, 1]) > 1 > -1 > float(state["output"][0, 0])


def test_without_gains_or_with_closed_controllers_it_is_binary_cross_entropy() -> None:
    features, labels = numbers(2, 4, 5), torch.tensor([[0, 1, 1, 2], [2, 2, 2, 0]])
    state = {"output": torch.full((2, 3), 4.0), "errors": torch.ones(2, 3, 3)}
    closed = context_of([[1, 2, 1], [1, 0, 3]], message={"tail": torch.zeros(3)})
    outputs = view_of(features, 3)
    losses, after = value(GraB(), outputs, batch_of(labels), closed, state)
    target = torch.eye(3, dtype=torch.float64)[labels]
    p = outputs.logits.sigmoid()
    plain = -(target * p.log() + (1 - target) * (1 - p).log()).sum(dim=-1).mean(dim=-1)
    torch.testing.assert_close(losses, plain)
    assert not after["output"].any()
    assert not after["errors"].any()
    still = GraB(kp=0.0, ki=0.0, kd=0.0)
    torch.testing.assert_close(
        value(still, outputs, batch_of(labels), context_of([[1, 2, 1], [1, 0, 3]]))[0], plain
    )


def test_controllers_persist_over_rounds_for_each_client() -> None:
    data, objective = clusters(), GraB()
    training = make_trainer(FedAvg(), data.federation, mlp(), loss=objective)
    cohorts = [[0, 2], [1], [2]]
    simulated = make_rounds(training, data.federation, participation=Scripted(cohorts))
    state = simulated.start(*training.forward.network.initial())
    kept: dict[int, Tensor] = {}
    for r, ids in enumerate(cohorts):
        state, _ = simulated.step(state)
        rows = simulated.store.read(np.arange(5), torch.device("cpu"))["loss/output"]
        for client, row in kept.items():
            assert torch.equal(rows[client], row) == (client not in ids)
        kept |= {client: rows[client].clone() for client in ids}
        assert sorted(simulated.store.visited_clients()) == sorted({c for past in cohorts[: r + 1] for c in past})
    assert len({tuple(row.tolist()) for row in kept.values()}) == 3


def test_a_second_round_goes_on_from_where_the_controllers_stood() -> None:
    data = clusters()
    training = make_trainer(FedAvg(), data.federation, mlp(), loss=GraB())
    simulated = make_rounds(training, data.federation, participation=Scripted([[2], [2]]))
    only, shards = np.array([2]), [data.federation.shard(2)]
    first, _ = simulated.step(simulated.start(*training.forward.network.initial()))
    kept = simulated.store.read(only, torch.device("cpu"))
    fresh = training.initial_state(training.clients(only, shards), first.x, first.buffers)
    simulated.step(first)
    after = simulated.store.read(only, torch.device("cpu"))
    sent = Broadcast(1, first.x, first.buffers, {}, simulated.learning_rate.lr)
    for state, same in ((kept, True), (fresh, False)):
        again = training.train(only, shards, state, sent).state["loss/output"]
        assert torch.allclose(again, after["loss/output"]) == same


def test_the_classifier_is_trained_and_not_only_what_is_below_it() -> None:
    data = clusters()
    training = make_trainer(FedGraB(), data.federation, mlp(), loss=GraB())
    network = training.forward.network
    start, _ = network.initial()
    *_, (state, record) = run_rounds(make_rounds(training, data.federation), 2)
    end, shares = state.x, state.method["shares"]
    assert record.extra["tail_classes"] == float(FedGraB().tail(shares).sum())
    for name, moved in network.layout.unflatten(end - start).items():
        assert moved.abs().max() > 1e-3, name


# --- Fed-GraB: the server -------------------------------------------------------------------------------


def with_row_lengths(lengths: Sequence[float]) -> tuple[Tensor, Layout]:
    """A model whose classifier has rows of these lengths."""
    network = Network(linear())
    x = network.initial()[0]
    weight = network.layout.unflatten(x)["weight"]
    weight *= torch.tensor(lengths, dtype=x.dtype)[:, None] / weight.norm(dim=1, keepdim=True)
    return x, network.layout


def test_shares_are_row_lengths_above_the_least() -> None:
    torch.testing.assert_close(
        class_shares(*with_row_lengths([1.0, 4.0, 2.0])), torch.tensor([0, 0.75, 0.25]).double()
    )


def test_shares_are_even_where_all_rows_are_zero() -> None:
    torch.testing.assert_close(class_shares(*with_row_lengths([0.0, 0.0, 0.0])), torch.full((3,), 1 / 3).double())


def test_tail_is_what_stands_behind_the_head_share() -> None:
    shares = torch.tensor([0.04, 0.5, 0.3, 0.01, 0.15])
    assert FedGraB(head_share=0.9).tail(shares).tolist() == [1, 0, 0, 1, 0]
    assert FedGraB(head_share=0.7).tail(shares).tolist() == [1, 0, 0, 1, 1]
    assert FedGraB(head_share=0.0).tail(shares).tolist() == [1, 1, 1, 1, 1]


def test_estimate_is_the_mean_over_rounds_and_no_controller_is_open_before_the_first() -> None:
    method = FedGraB()
    x, layout = with_row_lengths([1.0, 3.0, 2.0])
    population = context_of([[2, 1, 0], [1, 1, 1]]).population
    two, rates, rng = np.arange(2), np.full(2, 0.1), np.random.default_rng(0)
    everyone = Cohort(0, two, two + 3, two + 1, 0.1, rates, {}, population, layout, rng)
    state = method.init(x, population)
    assert not method.broadcast(state)["tail"].any()
    seen = []
    for lengths in ([1.0, 3.0, 2.0], [5.0, 1.0, 2.0], [2.0, 2.5, 1.0]):
        target, _ = with_row_lengths(lengths)
        seen.append(class_shares(target, layout))
        x, state = method.update(x, state, UploadRows({"delta": (target - x).repeat(2, 1)}), everyone)
        torch.testing.assert_close(state["shares"], torch.stack(seen).mean(dim=0))
    assert method.broadcast(state)["tail"].tolist() == method.tail(torch.stack(seen).mean(dim=0)).tolist()


def test_with_another_loss_its_server_is_fedavg() -> None:
    data = clusters()
    ends = []
    for method in (FedAvg(), FedGraB()):
        training = make_trainer(method, data.federation, mlp(), loss=CrossEntropy())
        ends.append(run_rounds(make_rounds(training, data.federation), 2)[-1][0].x)
    assert torch.equal(*ends)


def test_head_share_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head_share = 1\.5"):
        FedGraB(head_share=1.5)


def test_the_controllers_are_as_precise_as_the_model() -> None:
    data = clusters()
    training = make_trainer(FedAvg(), data.federation, mlp(), loss=GraB())
    x, _ = training.forward.network.initial()
    state = training.initial_state(training.clients(np.array([0]), [data.federation.shard(0)]), x, x[:0])
    assert x.dtype == torch.float64
    assert {value.dtype for value in state.values()} == {torch.float64}
