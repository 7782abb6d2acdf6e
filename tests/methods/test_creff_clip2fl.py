"""Laws of CReFF and CLIP2FL: gradients of the head, federated features, the re-trained head, embeddings."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import fedwcm
from fedwcm.core.types import Cohort, Layout, State
from fedwcm.engine.network import Network
from fedwcm.engine.server import RoundMeasures
from fedwcm.engine.uploads import UploadRows
from fedwcm.experiment.components import Components
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.methods.clip2fl import CLIP2FL, rotate
from fedwcm.methods.creff import CReFF, class_gradients
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import head_of
from fedwcm.models.base import CosineLinear
from fedwcm.samplers.uniform import Uniform
from fedwcm.teacher import Teacher
from fedwcm.testing import check_method

from ..factories import (
    BY_STEPS,
    CLASSES,
    FEATURES,
    Bench,
    Clusters,
    clusters,
    headless,
    make_rounds,
    make_trainer,
    mlp,
    population,
    run_rounds,
    seeded,
)
from ..specimens import global_torch_rng_untouched

HIDDEN = 6
CHEAP: dict[str, Any] = {"features": 10, "match_steps": 20, "retrain_epochs": 40, "retrain_lr": 0.3}
"""Enough federated features and steps to be CReFF, few enough for tests."""


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class HeadFirst(nn.Module):
    """A model whose head stands in front of its backbone in the flat vector."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.head = nn.Linear(HIDDEN, CLASSES, bias=bias)
        self.body = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs))


def head_first(bias: bool = True) -> nn.Module:
    return seeded(lambda: HeadFirst(bias))


@pytest.fixture(scope="module")
def data() -> Clusters:
    return clusters()


# --- the clients' gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("first_round", [False, True])
def test_gradient_of_each_class_is_autograds(data: Clusters, stacked: bool, first_round: bool) -> None:
    bench = Bench(CReFF(), data, mlp(), stacked=stacked)
    head = numbers(CLASSES, HIDDEN + 1)
    sent = bench.run("probe", BY_STEPS, None if first_round else {"head": head})
    module = mlp()
    if first_round:
        head = head_of(*_flat(module))[0]
    for row, client in enumerate(BY_STEPS):
        for c in range(CLASSES):
            rows = [i for i in data.parts[client] if data.labels[i] == c]
            leaf = head.clone().requires_grad_()
            features = module[:-1](torch.from_numpy(data.inputs[rows]))
            logits = features @ leaf[:, :-1].T + leaf[:, -1]
            expected = torch.zeros_like(head)
            if rows:
                loss = cross_entropy(logits, torch.full((len(rows),), c))
                (expected,) = torch.autograd.grad(loss, leaf)
            torch.testing.assert_close(sent.upload["gradients"][row, c], expected)
            assert sent.upload["holders"][row, c] == bool(rows)


def test_server_averages_a_class_over_the_clients_that_have_it(data: Clusters) -> None:
    sent = Bench(CReFF(), data, mlp()).run("probe").upload
    method = CReFF()
    sums = method.after_probe({}, UploadRows(sent), _cohort(data, Network(mlp()).layout))
    has = sent["holders"].bool()
    assert not has.all(), "the law needs a client that misses a class"
    for c in range(CLASSES):
        expected = sent["gradients"][has[:, c], c].mean(dim=0)
        torch.testing.assert_close(sums["gradients"][c] / sums["holders"][c], expected)


def test_model_without_a_linear_head_is_refused() -> None:
    images = clusters(shape=(1, 4, 4))
    with pytest.raises(ValueError, match="final linear layer"):
        Bench(CReFF(), images, headless()).run("probe")


@pytest.mark.parametrize("method", [CReFF(), CLIP2FL()], ids=lambda method: method.name)
def test_model_whose_head_is_no_plain_linear_layer_is_refused(method: CReFF) -> None:
    """The head that is trained on federated features would be evaluated as something else."""
    message = (
        rf"model\.head is a CosineLinear, which is not allowed with the method {method.name}.* must be linear"
    )
    head = CosineLinear(HIDDEN, CLASSES)
    with pytest.raises(ValueError, match=message):
        Components(method, CrossEntropy(), Uniform()).refuse_head(head)
    Components(FedAvg(), CrossEntropy(), Uniform()).refuse_head(head)


def test_a_run_with_a_cosine_head_is_refused_before_the_first_round() -> None:
    with pytest.raises(ValueError, match=r"model\.head is a CosineLinear"):
        fedwcm.run("creff", model="mlp[head=cosine]", dataset="digits", clients=2)


# --- federated features ----------------------------------------------------------------------------------


def test_gradient_of_federated_features_is_autograds() -> None:
    features, head = numbers(CLASSES, 7, HIDDEN), numbers(CLASSES, HIDDEN + 1, seed=1)
    for c in range(CLASSES):
        leaf = head.clone().requires_grad_()
        loss = cross_entropy(features[c] @ leaf[:, :-1].T + leaf[:, -1], torch.full((7,), c))
        torch.testing.assert_close(class_gradients(features, head)[c], torch.autograd.grad(loss, leaf)[0])


def matching_problem(bias: int = 1) -> tuple[State, State]:
    """A state of the server, and gradients made by other features of which class 0 has none."""
    head = numbers(CLASSES, HIDDEN + bias, seed=2)
    real = class_gradients(numbers(CLASSES, 50, HIDDEN, seed=3) + 1.0, head)
    held = torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64)
    state = {"features": numbers(CLASSES, 10, HIDDEN), "head": head}
    return state, {"gradients": real * held[:, None, None], "holders": held}


@pytest.mark.parametrize("bias", [0, 1])
def test_matching_lowers_the_distance_of_gradients(bias: int) -> None:
    method = CReFF(match_steps=100)
    state, agg = matching_problem(bias)
    before = float(method.feature_loss(state["features"], state, agg))
    after = float(method.feature_loss(method.match_features(state, agg), state, agg))
    assert 0 <= after < 0.5 * before


def test_gradients_of_the_features_themselves_are_at_distance_zero() -> None:
    state, agg = matching_problem()
    agg["gradients"] = class_gradients(state["features"], state["head"]) * agg["holders"][:, None, None]
    assert float(CReFF().feature_loss(state["features"], state, agg)) == pytest.approx(0.0, abs=1e-12)


def test_scale_of_the_gradients_does_not_matter() -> None:
    state, agg = matching_problem()
    tiny = {**agg, "gradients": 1e-5 * agg["gradients"]}
    losses = [float(CReFF().feature_loss(state["features"], state, a)) for a in (agg, tiny)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_class_that_nobody_has_keeps_its_features() -> None:
    state, agg = matching_problem()
    features = CReFF(match_steps=5).match_features(state, agg)
    assert torch.equal(features[0], state["features"][0])
    assert not torch.equal(features[1], state["features"][1])


# --- the re-trained head ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [0, 1])
def test_retrained_head_classifies_separable_features(bias: int) -> None:
    centres = 3.0 * torch.eye(CLASSES, HIDDEN, dtype=torch.float64)
    seen, unseen = (centres[:, None] + 0.5 * numbers(CLASSES, 100, HIDDEN, seed=seed) for seed in (0, 1))
    head = CReFF(retrain_epochs=30).retrain_head(seen, HIDDEN + bias, generator())
    assert head.shape == (CLASSES, HIDDEN + bias)
    logits = unseen @ head[:, :HIDDEN].T + (head[:, HIDDEN] if bias else 0.0)
    assert (logits.argmax(dim=-1) == torch.arange(CLASSES)[:, None]).all()


def test_retraining_is_sgd_on_cross_entropy_from_a_fresh_linear_layer() -> None:
    features, batch, lr = numbers(CLASSES, 9, HIDDEN), 8, 0.1
    ours = CReFF(retrain_epochs=3, retrain_batch=batch, retrain_lr=lr).retrain_head(
        features, HIDDEN + 1, generator()
    )
    rng = generator()
    start = torch.rand(CLASSES, HIDDEN + 1, generator=rng, dtype=torch.float64)
    head = ((2 * start - 1) / math.sqrt(HIDDEN)).requires_grad_()
    inputs, labels = features.reshape(-1, HIDDEN), torch.arange(CLASSES).repeat_interleave(9)
    optimizer = torch.optim.SGD([head], lr=lr)
    for _ in range(3):
        for rows in torch.randperm(len(labels), generator=rng).split(batch):
            optimizer.zero_grad()
            cross_entropy(inputs[rows] @ head[:, :-1].T + head[:, -1], labels[rows]).backward()
            optimizer.step()
    torch.testing.assert_close(ours, head.detach())


@pytest.mark.parametrize("bias", [True, False])
def test_evaluated_model_differs_from_x_in_the_head_alone(data: Clusters, bias: bool) -> None:
    method, module = CReFF(**CHEAP), head_first(bias)
    state, _ = _played(method, data, module, rounds=2)[-1]
    network = Network(head_first(bias))
    trained, evaluated = (
        network.layout.unflatten(v) for v in (state.x, method.eval_params(state.x, state.method))
    )
    for name in trained:
        assert torch.equal(trained[name], evaluated[name]) == (not name.startswith("head"))
    found = head_of(method.eval_params(state.x, state.method), network.layout)[0]
    assert torch.equal(found, state.method["head"])


def test_before_the_first_round_the_model_is_evaluated_as_it_is() -> None:
    x = numbers(20)
    assert CReFF().eval_params(x, {}) is x


@pytest.mark.parametrize("bias", [True, False])
def test_model_in_training_is_fedavgs_bit_for_bit(data: Clusters, bias: bool) -> None:
    ours, theirs = (_played(m, data, head_first(bias), 3)[-1][0] for m in (CReFF(**CHEAP), FedAvg()))
    assert torch.equal(ours.x, theirs.x)


# --- the round -------------------------------------------------------------------------------------------


def test_update_changes_nothing_and_draws_from_the_cohort_alone(data: Clusters) -> None:
    method, module = CReFF(**CHEAP), mlp()
    x, layout = _flat(module)
    state = {**method.first_state(x, {}, layout, generator()), **matching_problem()[1]}
    uploads = UploadRows({"delta": (0.1 * x).repeat(len(data.parts), 1)})
    before = [value.clone() for value in (x, *state.values(), *uploads.by_key.values())]
    with global_torch_rng_untouched():
        ends = [method.update(x, state, uploads, _cohort(data, layout)) for _ in range(2)]
    assert all(map(torch.equal, before, (x, *state.values(), *uploads.by_key.values())))
    assert torch.equal(ends[0][0], ends[1][0])
    assert all(torch.equal(value, ends[1][1][key]) for key, value in ends[0][1].items())


def test_bytes_of_gradients_and_head_are_counted(data: Clusters) -> None:
    clients, width, wide = 5, HIDDEN + 1, 8
    records = [record for _, record in _played(CReFF(**CHEAP), data, mlp(), 2)]
    plain = _played(FedAvg(), data, mlp(), 1)[0][1]
    uploads = CLASSES * CLASSES * width + CLASSES
    assert records[0].bytes_up - plain.bytes_up == clients * uploads * wide
    assert records[1].bytes_down - records[0].bytes_down == clients * CLASSES * width * wide


# --- class embeddings on the server ----------------------------------------------------------------------


def test_embeddings_of_the_right_length_stay_as_they_are() -> None:
    embeddings = numbers(CLASSES, HIDDEN)
    assert rotate(embeddings, HIDDEN, generator()) is embeddings


@pytest.mark.parametrize("length", [2, 5, 512])
@pytest.mark.parametrize("d", [3, 64, 600])
def test_turned_embeddings_keep_their_products(length: int, d: int) -> None:
    embeddings = numbers(CLASSES, length)
    ours = rotate(embeddings, d, generator())
    assert ours.shape == (CLASSES, d)
    torch.testing.assert_close(ours @ ours.T, embeddings @ embeddings.T)


def test_fewer_features_than_classes_keep_the_best_part_of_the_products() -> None:
    embeddings = normalize(numbers(8, 20), dim=-1)
    products = embeddings @ embeddings.T
    ours = rotate(embeddings, 4, generator())
    error = torch.linalg.matrix_norm(ours @ ours.T - products)
    assert error**2 == pytest.approx(float((torch.linalg.eigvalsh(products)[:4] ** 2).sum()))


def test_contrast_zero_is_creff_bit_for_bit_and_needs_no_teacher(data: Clusters) -> None:
    ends = [
        _played(method, data, mlp(), 2)[-1][0].method
        for method in (CReFF(**CHEAP), CLIP2FL(**CHEAP, contrast=0.0, teacher="nowhere"))
    ]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(value, ends[1][key]) for key, value in ends[0].items())


def test_contrast_draws_features_towards_their_class() -> None:
    state, agg = matching_problem()
    state["embeddings"] = normalize(numbers(CLASSES, HIDDEN, seed=4), dim=-1)
    classes = torch.arange(CLASSES)[:, None]

    def own_share(contrast: float) -> float:
        features = CLIP2FL(contrast=contrast, match_steps=50).match_features(state, agg)
        return float((features @ state["embeddings"].T).argmax(dim=-1).eq(classes).double().mean())

    shares = [own_share(contrast) for contrast in (1e-9, 1.0, 100.0)]
    assert shares[0] < shares[1] < shares[2]
    assert shares[2] > 0.95


def test_contrastive_term_is_the_mean_surprise_of_finding_the_own_embedding() -> None:
    state, agg = matching_problem()
    state["embeddings"] = numbers(CLASSES, HIDDEN, seed=4)
    terms = []
    for c in range(CLASSES):
        for v in state["features"][c]:
            likeness = torch.exp(state["embeddings"] @ v / 0.5)
            terms.append(-math.log(float(likeness[c] / likeness.sum())))
    losses = [
        float(m.feature_loss(state["features"], state, agg))
        for m in (CReFF(), CLIP2FL(contrast=0.3, temperature=0.5))
    ]
    assert losses[1] - losses[0] == pytest.approx(0.3 * np.mean(terms))


def test_clip2fl_keeps_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    Teacher(numbers(4, CLASSES), numbers(CLASSES, 9), torch.zeros(4, dtype=torch.int64)).write(path)
    check_method(CLIP2FL, {**CHEAP, "teacher": str(path)})


# --- helpers ---------------------------------------------------------------------------------------------


def _flat(module: nn.Module) -> tuple[Tensor, Layout]:
    network = Network(module)
    return network.initial()[0], network.layout


def _played(method: Any, data: Clusters, module: nn.Module, rounds: int) -> list[tuple[Any, RoundMeasures]]:
    return run_rounds(make_rounds(make_trainer(method, data.federation, module), data.federation), rounds)


def _cohort(data: Clusters, layout: Layout) -> Cohort:
    """Everybody, at the start of a run."""
    samples = data.federation.samples
    return Cohort(
        round=0,
        ids=np.arange(len(samples)),
        samples=samples,
        steps=samples,
        base_lr=0.1,
        learning_rates=np.full(len(samples), 0.1),
        report={},
        population=population(data.federation),
        layout=layout,
        rng=np.random.default_rng(0),
    )
