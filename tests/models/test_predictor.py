"""The logits that a model was trained on, wherever it is used; their adjustment, and where it is refused."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

import fedwcm
from fedwcm.cli import main
from fedwcm.data import load_dataset
from fedwcm.models.facts import ModelFacts
from fedwcm.models.predictor import Predictor, predictor
from tests.api.objects import SMALL

COUNTS = (60, 30, 10)


def facts(counts: tuple[int, ...] | None = COUNTS, target: tuple[float, ...] | None = None) -> ModelFacts:
    return ModelFacts(
        input_shape=(4,),
        classes=("a", "b", "c"),
        mean=(0.0,),
        std=(1.0,),
        class_counts=counts,
        target=target,
    )


def posterior(model: nn.Module, inputs: torch.Tensor) -> np.ndarray:
    return model(inputs).softmax(dim=-1).detach().numpy()


def test_it_is_bayes_rule_for_another_class_distribution() -> None:
    model, inputs = nn.Linear(4, 3), torch.randn(5, 4)
    target = np.array([0.2, 0.2, 0.6])
    odds = posterior(model, inputs) * target / (np.array(COUNTS) / 100)
    moved = posterior(predictor(model, facts(target=tuple(target.tolist())), 1.0), inputs)
    np.testing.assert_allclose(moved, odds / odds.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("about", "tau"),
    [(facts((20, 20, 20)), 1.0), (facts(COUNTS, (0.6, 0.3, 0.1)), 1.0), (facts(), 0.0)],
    ids=["uniform", "target", "tau 0"],
)
def test_it_changes_nothing_for(about: ModelFacts, tau: float) -> None:
    model, inputs = nn.Linear(4, 3), torch.randn(5, 4)
    moved = posterior(predictor(model, about, tau), inputs)
    np.testing.assert_allclose(moved, posterior(model, inputs), rtol=1e-5)


def test_a_class_without_samples_and_a_target_without_a_class_are_finite() -> None:
    model = predictor(nn.Linear(4, 3), facts((60, 40, 0), (0.5, 0.5, 0.0)), 1.0)
    assert torch.isfinite(model(torch.randn(5, 4))).all()


def test_the_run_s_model_is_adjusted_wherever_it_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedwcm.run("fedavg", dataset="digits", imbalance=0.05, out=tmp_path / "run", **SMALL)
    plain, moved = (fedwcm.evaluate(tmp_path / "run", adjust=tau) for tau in (0.0, 1.0))
    assert plain.few is not None
    assert moved.few is not None
    assert moved.few > plain.few
    rows = np.random.default_rng(0).integers(0, 17, size=(6, 8, 8, 1)).astype(np.uint8)
    inputs = fedwcm.load_normalizer(tmp_path / "run")(rows)
    expected = posterior(fedwcm.load_model(tmp_path / "run", adjust=1.0), inputs)
    np.testing.assert_allclose(
        fedwcm.predict(tmp_path / "run", rows, adjust=1.0).probabilities, expected, rtol=1e-5
    )
    main(["evaluate", str(tmp_path / "run"), "--adjust"])
    assert f"{moved.test_accuracy:.4f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method.name": "creff"}, "trained with method creff"),
        ({"loss.name": "prior_ce"}, "trained with loss prior_ce"),
        ({"sampler.name": "balanced"}, "trained with sampler balanced"),
    ],
)
def test_a_model_whose_training_accounted_for_the_distribution_is_refused(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    few: Any = {**SMALL, "rounds": 1}
    method = {"method.name": "fedavg"}
    fedwcm.run(dataset="digits", out=tmp_path / "run", settings={**method, **settings}, **few)
    with pytest.raises(ValueError, match=reason):
        fedwcm.evaluate(tmp_path / "run", adjust=1.0)
    fedwcm.evaluate(tmp_path / "run")
    tau_0 = {"loss.name": "prior_ce", "loss.tau": 0.0}
    fedwcm.run("fedavg", dataset="digits", out=tmp_path / "plain", settings=tau_0, **few)
    fedwcm.evaluate(tmp_path / "plain", adjust=1.0)


def test_a_model_file_without_counts_says_so() -> None:
    with pytest.raises(ValueError, match="needs the class counts"):
        predictor(nn.Linear(4, 3), facts(None), 1.0)


def test_a_recipe_s_probabilities_are_those_of_the_trained_logits_wherever_it_is_used(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = fedwcm.run("fedwcm+", dataset="digits", imbalance=0.1, out=run, **SMALL | {"rounds": 20})
    data = load_dataset("digits", seed=0)
    inputs = fedwcm.load_normalizer(run)(data.x_test)
    model = fedwcm.load_model(run)
    assert isinstance(model, Predictor)
    z = model.model(inputs).detach()
    f = model.model.body(inputs).detach()
    trained = 10.0 * z / (1.0 + (f**2).sum(dim=1, keepdim=True)).sqrt()
    expected = trained.softmax(dim=1).numpy()
    for probabilities in (posterior(model, inputs), posterior(result.model, inputs)):
        np.testing.assert_allclose(probabilities, expected, rtol=1e-4, atol=1e-6)
    predicted = fedwcm.predict(run, data.x_test)
    np.testing.assert_allclose(predicted.probabilities, expected, rtol=1e-4, atol=1e-6)
    exported = torch.jit.load(fedwcm.export(run, "torchscript", tmp_path / "model.pt"))
    outside = exported(torch.from_numpy(data.x_test))[1].detach().numpy()
    np.testing.assert_allclose(outside, expected, rtol=1e-4, atol=1e-6)
    loss = cross_entropy(trained, torch.from_numpy(data.y_test)).item()
    assert result.summary.test_loss == pytest.approx(loss, rel=1e-4)
    assert fedwcm.evaluate(run).test_loss == pytest.approx(loss, rel=1e-4)
    assert cross_entropy(z, torch.from_numpy(data.y_test)).item() != pytest.approx(loss, rel=0.01)
    assert (z.argmax(dim=1) == trained.argmax(dim=1)).all()
    weights = load_file(fedwcm.export(run, "state-dict", tmp_path / "model.safetensors"))
    assert set(model.model.state_dict()) <= set(weights)


def test_a_model_with_normalised_logits_may_be_called_in_threads_and_copied() -> None:
    about = replace(facts(), logit_factor=10.0, normalizes_logits=True, temperature=2.0)
    model = predictor(nn.Linear(4, 3), about)
    batches = [torch.randn(n, 4) for n in range(1, 40)]
    alone = [model(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(model, batches))
    for ours, theirs, batch in zip(alone, together, batches, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(copy.deepcopy(model)(batch), ours)
    x = batches[-1]
    expected = 5.0 * model.model(x) / (1.0 + (x**2).sum(dim=1, keepdim=True)).sqrt()
    torch.testing.assert_close(alone[-1], expected)
