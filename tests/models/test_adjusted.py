"""Post-hoc adjustment: what it changes, and for which models it is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedwcm
from fedwcm.cli import main
from fedwcm.models.adjusted import adjusted
from fedwcm.models.facts import ModelFacts
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
    moved = posterior(adjusted(model, facts(target=tuple(target.tolist())), 1.0), inputs)
    np.testing.assert_allclose(moved, odds / odds.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("about", "tau"),
    [(facts((20, 20, 20)), 1.0), (facts(COUNTS, (0.6, 0.3, 0.1)), 1.0), (facts(), 0.0)],
    ids=["uniform", "target", "tau 0"],
)
def test_it_changes_nothing_for(about: ModelFacts, tau: float) -> None:
    model, inputs = nn.Linear(4, 3), torch.randn(5, 4)
    np.testing.assert_allclose(posterior(adjusted(model, about, tau), inputs), posterior(model, inputs), rtol=1e-5)


def test_a_class_without_samples_and_a_target_without_a_class_are_finite() -> None:
    model = adjusted(nn.Linear(4, 3), facts((60, 40, 0), (0.5, 0.5, 0.0)), 1.0)
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
    inputs = torch.from_numpy(fedwcm.normalizer(tmp_path / "run")(rows))
    expected = posterior(fedwcm.load(tmp_path / "run", adjust=1.0), inputs)
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
    few = {**SMALL, "rounds": 1}
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
        adjusted(nn.Linear(4, 3), facts(None), 1.0)
