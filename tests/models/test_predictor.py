"""The logits that a model was trained on, wherever it is used; their shift to another class mix."""

import copy
import re
import warnings
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
from fedwcm.api.mix import mix_shift
from fedwcm.cli import main
from fedwcm.data import load_dataset
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.model_file import read_facts
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


MEANS = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.5, 0]])


def exact_model(shares: np.ndarray) -> nn.Linear:
    """The posterior of a mixture of three normal distributions with these shares: a linear model has it."""
    model = nn.Linear(4, 3)
    model.weight.data = torch.tensor(MEANS, dtype=torch.float32)
    model.bias.data = torch.tensor(np.log(shares) - (MEANS**2).sum(axis=1) / 2, dtype=torch.float32)
    return model


@pytest.mark.parametrize("assumed", [None, (0.2, 0.2, 0.6)], ids=["plain", "with a prior"])
@pytest.mark.parametrize("mix", [{"a": 8, "b": 1, "c": 1}, "uniform", "natural", [0.5, 0.25, 0.25]])
def test_a_mix_is_bayes_rule_on_a_mixture_with_known_posteriors(
    assumed: tuple[float, ...] | None, mix: Any
) -> None:
    about = replace(facts(), assumed=assumed, balanced_by=None if assumed is None else "loss prior_ce")
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    model = exact_model(about.assumed_shares)
    named = {"uniform": [1 / 3] * 3, "natural": [0.6, 0.3, 0.1]}
    listed = named[mix] if isinstance(mix, str) else list(mix.values()) if isinstance(mix, dict) else mix
    shares = np.array(listed, dtype=float)
    moved = posterior(predictor(model, about, mix_shift(mix, about, None)), inputs)
    np.testing.assert_allclose(moved, posterior(exact_model(shares / shares.sum()), inputs), rtol=1e-4)


def test_uniform_to_natural_and_back_is_the_identity() -> None:
    model, inputs, plain = nn.Linear(4, 3), torch.randn(5, 4), facts()
    even = replace(plain, assumed=(1 / 3, 1 / 3, 1 / 3))
    there = predictor(model, even, mix_shift("natural", even, None))
    back = predictor(there, plain, mix_shift("uniform", plain, None))
    torch.testing.assert_close(back(inputs), model(inputs))
    assert not torch.allclose(there(inputs).softmax(dim=1), model(inputs).softmax(dim=1), rtol=0.1)


def test_a_class_without_samples_and_a_mix_without_a_class_are_finite() -> None:
    about = facts((60, 40, 0))
    model = predictor(nn.Linear(4, 3), about, mix_shift({"a": 0.5, "b": 0.5, "c": 0.0}, about, None))
    assert torch.isfinite(model(torch.randn(5, 4))).all()


@pytest.mark.parametrize(
    ("mix", "reason"),
    [
        ("a=0.5,b=0.5", "given for every class, so also for c"),
        ("a=0.5,b=0.5,d=1", "unknown class in mix: 'd'"),
        ("a=0.5,b=-1,c=0.5", "mix, class 'b', = -1"),
        ("unifrom", "natural, uniform, target"),
        ([0.5, 0.5], "one share for each of a, b, c"),
        ("client:s1", "does not say which client"),
    ],
)
def test_a_mix_that_is_none_is_refused_by_name(mix: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        mix_shift(mix, facts(), None)


def test_a_mix_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mix.json").write_text('{"a": 1, "b": 2, "c": 1}')
    (tmp_path / "mix.csv").write_text("class,share\nb,0.5\na,0.25\nc,0.25\n")
    expected = mix_shift("a=0.25,b=0.5,c=0.25", facts(), None)
    for name in ("mix.json", "mix.csv"):
        shift = mix_shift(tmp_path / name, facts(), None)
        assert expected is not None
        assert shift is not None
        np.testing.assert_allclose(shift, expected)


def test_the_run_s_model_has_the_mix_wherever_it_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    fedwcm.run("fedavg", dataset="digits", imbalance=0.05, out=run, **SMALL)
    plain, moved = fedwcm.evaluate(run), fedwcm.evaluate(run, mix="uniform")
    assert plain.few is not None
    assert moved.few is not None
    assert moved.few > plain.few
    assert plain.mix_distance is not None
    assert plain.mix_distance > 0.3  # trained on a long tail, tested on equally frequent classes
    assert moved.mix_distance == pytest.approx(0.0, abs=0.02)
    assert fedwcm.evaluate(run, mix="natural").confusion == plain.confusion
    rows = np.random.default_rng(0).integers(0, 17, size=(6, 8, 8, 1)).astype(np.uint8)
    inputs = fedwcm.load_normalizer(run)(torch.from_numpy(rows))
    expected = posterior(fedwcm.load_model(run, mix="uniform"), inputs)
    predicted = fedwcm.predict(run, rows, mix="uniform").probabilities
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)
    exported = torch.jit.load(fedwcm.export(run, "torchscript", tmp_path / "m.pt", mix="uniform"))
    np.testing.assert_allclose(
        exported(torch.from_numpy(rows))[1].detach().numpy(), expected, rtol=1e-4, atol=1e-6
    )
    main(["evaluate", str(run), "--mix", "uniform"])
    shown = capsys.readouterr().out
    assert f"{moved.test_accuracy:.4f}" in shown
    assert "presuppose another class mix" not in shown
    main(["evaluate", str(run)])
    assert "presuppose another class mix" in capsys.readouterr().out
    of_client = fedwcm.load_model(run, mix="client:0")
    assert not np.allclose(posterior(of_client, inputs), expected)
    with pytest.raises(ValueError, match="client:NAME"):
        fedwcm.load_model(run, mix="client")
    with pytest.raises(ValueError, match="unknown client in mix: 'nobody'"):
        fedwcm.load_model(run, mix="client:nobody")


BIASES = {"x": np.zeros((60, 1), dtype=np.float32), "y": np.repeat([0, 1, 2, 0, 1], [20, 8, 2, 10, 20])}
OWNERS = np.repeat(["s", "t"], [30, 30])


class OnlyBias(nn.Module):
    """Nothing but a logit per class: trained, its probabilities are the distribution that they presuppose."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(inputs)
        return logits


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sampler.name": "balanced"},
        {"loss.name": "prior_ce", "loss.prior": "global"},
        {"loss.name": "prior_ce", "loss.prior": "global", "loss.tau": 0.5, "loss.scale": 2.0},
        {"loss.name": "prior_ce", "loss.prior": "global", "sampler.name": "balanced"},
        {"loss.name": "prior_ce", "run.target": {"0": 0.2, "1": 0.3, "2": 0.5}},
        {"loss.name": "class_weights", "loss.prior": "global"},
    ],
    ids=lambda settings: ",".join(f"{value}" for value in settings.values()) or "plain",
)
def test_a_model_of_biases_alone_learns_the_distribution_that_it_presupposes(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    out = tmp_path / "run"
    settings = {"local.weight_decay": 0.0, "data.normalize": "none", "run.eval_every": 40, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fedwcm.run(
            "fedavg",
            dataset={"x_train": BIASES["x"], "y_train": BIASES["y"], "x_test": BIASES["x"], "y_test": BIASES["y"]},
            clients=OWNERS,
            model=OnlyBias(),
            out=out,
            rounds=40,
            epochs=3,
            lr=0.6,
            batch_size=30,
            participation=1.0,
            report=False,
            backend="sequential",
            settings=settings,
        )
        model = fedwcm.load_model(out, model=OnlyBias())
        learnt = posterior(model, torch.zeros(1, 1))[0]
        assumed = read_facts(RunFolder(out)).assumed_shares
        np.testing.assert_allclose(learnt, assumed, atol=0.05)
        natural = posterior(fedwcm.load_model(out, model=OnlyBias(), mix="natural"), torch.zeros(1, 1))[0]
        np.testing.assert_allclose(natural, np.bincount(BIASES["y"]) / 60, atol=0.06)


@pytest.mark.parametrize("settings", [{"loss.name": "ldam"}, {"loss.name": "grab"}])
def test_a_loss_without_a_rule_is_refused_until_its_mix_is_fitted(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    settings = {"method.name": "fedavg", **settings}
    few: Any = {**SMALL, "rounds": 1}
    fedwcm.run(dataset="digits", out=tmp_path / "run", settings=settings, **few)
    with pytest.raises(ValueError, match=f"trained with loss {settings['loss.name']}. Fit it to validation data"):
        fedwcm.evaluate(tmp_path / "run", mix="uniform")
    assert fedwcm.evaluate(tmp_path / "run").mix_distance is None
    fedwcm.calibrate(tmp_path / "run", "digits")
    assert fedwcm.evaluate(tmp_path / "run", mix="uniform").mix_distance == pytest.approx(0.0, abs=0.02)


def test_a_model_file_without_counts_says_so() -> None:
    with pytest.raises(ValueError, match="does not have the class counts"):
        mix_shift("natural", facts(None), None)


def test_a_recipe_s_probabilities_are_those_of_the_trained_logits_everywhere(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = fedwcm.run("fedwcm+longtail", dataset="digits", imbalance=0.1, out=run, **SMALL | {"rounds": 8})
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
