"""Any method with any loss and any sampler."""

from typing import Any

import pytest

import fedwcm
from fedwcm.config.recipes import RECIPES
from fedwcm.losses import LOSSES
from fedwcm.methods import METHODS
from fedwcm.samplers import SAMPLERS

SMALL: Any = {"dataset": "digits", "clients": 8, "participation": 0.5, "epochs": 1, "batch_size": 20, "rounds": 2}
NAMES = [name for name in LOSSES if name != "distillation"]
"""Distillation needs a teacher's file: tests/methods/test_creff_clip2fl.py makes one."""


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
@pytest.mark.parametrize("loss", NAMES)
@pytest.mark.parametrize("method", ["fedwcm", "scaffold", "mime", "fedsam"])
def test_methods_losses_and_samplers_compose(method: str, loss: str, sampler: str) -> None:
    if method == "mime" and (sampler == "balanced" or not LOSSES[loss].averages_samples):
        with pytest.raises(ValueError, match=r"is not allowed with the method mime: .*each counted once"):
            fedwcm.run(method, loss=loss, sampler=sampler, **SMALL)
        return
    result = fedwcm.run(method, loss=loss, sampler=sampler, **SMALL)
    assert (result.config.loss.name, result.config.sampler.name) == (loss, sampler)
    assert result.summary.rounds == 2


TARGET = [0.55, *[0.05] * 9]


@pytest.mark.parametrize(
    ("method", "options", "by"),
    [
        ("fedavg", {"loss": "class_weights"}, "loss class_weights"),
        ("fedavg", {"loss": "ldam"}, "loss ldam"),
        ("fedwcm", {"loss": "grab"}, "loss grab"),
        ("balancefl", {}, "loss balancefl"),
        ("fedavg", {"sampler": "balanced"}, "sampler balanced"),
        ("creff", {"loss": "prior_ce"}, "method creff"),
        ("fedwcm+longtail", {}, "sampler balanced"),
        ("fedavg", {"loss": "prior_ce", "sampler": "balanced"}, "sampler balanced"),
    ],
)
def test_a_target_that_training_would_not_follow_is_refused(method: str, options: dict[str, Any], by: str) -> None:
    with pytest.raises(ValueError, match=rf"run\.target = \[0\.55, .* is not allowed with the {by}, "):
        fedwcm.run(method, settings={"run.target": TARGET}, **options, **SMALL)
    fedwcm.run(method, settings={"run.target": [0.1] * 10}, **options, **SMALL)


@pytest.mark.parametrize(
    "method", ["fedwcm+prior_ce", "fedwcm+longtail[sampler.name=uniform]", "fedavg", "fedwcm"]
)
def test_a_target_that_is_followed_or_left_to_the_adjustment_is_not_refused(method: str) -> None:
    assert fedwcm.run(method, settings={"run.target": TARGET}, **SMALL).summary.rounds == 2


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "clip2fl"])
def test_every_recipe_runs_under_its_name(recipe: str) -> None:
    result = fedwcm.run(recipe, **SMALL)
    assert result.config.method.name == RECIPES[recipe].settings["method.name"]


def test_wcm_goes_with_any_momentum_method_and_with_no_other() -> None:
    composed = fedwcm.run("mofedsam+wcm[temperature_scale=1.0]", **SMALL)
    assert composed.config.method.options["temperature_scale"] == 1.0
    assert composed.history[1].extra["alpha"] > 0.1
    with pytest.raises(ValueError, match=r"fedavg has no FedCM-style momentum"):
        METHODS["fedavg+wcm"]


def test_fedcm_with_wcm_is_fedwcm() -> None:
    ours, theirs = fedwcm.run("fedcm+wcm", **SMALL), fedwcm.run("fedwcm", **SMALL)
    assert ours.history[-1].test_loss == theirs.history[-1].test_loss


def test_correcting_twice_is_said_unless_a_recipe_does_it_on_purpose(recwarn: pytest.WarningsRecorder) -> None:
    fedwcm.run("fedwcm+longtail", **SMALL)
    assert not [w for w in recwarn if "both correct" in str(w.message)]
    with pytest.warns(UserWarning, match="sampler balanced and the loss class_weights both correct"):
        fedwcm.run("fedavg", loss="class_weights", sampler="balanced", **SMALL)


def test_classes_without_validation_samples_are_named() -> None:
    with pytest.warns(UserWarning, match=r"digits: no validation sample of class .*9.*larger share for"):
        fedwcm.partition(dataset="digits", imbalance=0.02, val_fraction=0.1, clients=5)
