"""The Python functions: what they return can be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.core.rng import Purpose, generator
from fedwcm.data import Dataset, load_dataset
from fedwcm.data.inputs import FlipCrop, Normalizer
from tests.records import timeless

SMALL: Any = {"dataset": "digits", "clients": 10, "participation": 0.5, "epochs": 2, "batch_size": 10, "rounds": 8}


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> fedwcm.Result:
    return fedwcm.run("fedwcm", out=tmp_path_factory.mktemp("runs") / "digits", **SMALL)


def test_loaded_model_with_its_normalizer_repeats_the_final_accuracy(digits_run: fedwcm.Result) -> None:
    assert digits_run.folder is not None
    model, normalizer = fedwcm.load_model(digits_run.folder), fedwcm.load_normalizer(digits_run.folder)
    data = load_dataset("digits")
    with torch.no_grad():
        predicted = model(normalizer(data.x_test)).argmax(dim=1).numpy()
    assert (predicted == data.y_test).mean() == pytest.approx(digits_run.summary.final_accuracy, abs=1e-12)
    assert digits_run.summary.final_accuracy > 0.5


def test_evaluate_matches_classes_by_name_not_by_number(digits_run: fedwcm.Result) -> None:
    assert digits_run.folder is not None
    data = load_dataset("digits")
    shuffled = np.array([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    renamed = Dataset(
        "renumbered",
        data.x_train,
        np.argsort(shuffled)[data.y_train],
        data.x_test,
        np.argsort(shuffled)[data.y_test],
        tuple(data.classes[i] for i in shuffled),
    )
    measured = fedwcm.evaluate(digits_run.folder, renamed)
    assert measured.test_accuracy == pytest.approx(digits_run.summary.final_accuracy)
    foreign = Dataset("letters", data.x_train, data.y_train, data.x_test, data.y_test, tuple("abcdefghij"))
    with pytest.raises(ValueError, match="classes that the model does not know"):
        fedwcm.evaluate(digits_run.folder, foreign)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = fedwcm.run("fedavg", **{**SMALL, "rounds": 1})
    assert result.folder is None
    assert not list(tmp_path.iterdir())


def test_validation_data_is_held_out_of_training() -> None:
    plain, held = (fedwcm.partition(dataset="digits", clients=5, val_fraction=share) for share in (0.0, 0.25))
    assert held.counts.sum() == pytest.approx(0.75 * plain.counts.sum(), rel=0.02)


def test_own_model_by_module_and_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_of_one_s_own.py").write_text(
        "from torch import nn\n"
        "def tiny(input_shape, classes, width=8):\n"
        "    layers = nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, classes)\n"
        "    return nn.Sequential(nn.Flatten(), *layers)\n"
    )
    monkeypatch.chdir(tmp_path)
    options: Any = {**SMALL, "rounds": 1, "model": "models_of_one_s_own:tiny", "settings": {"model.width": 16}}
    result = fedwcm.run("fedwcm", out="run", **options)
    with pytest.raises(ValueError, match="only the run's folder names"):
        fedwcm.load_model("run")
    for model in (
        fedwcm.load_model("run", trust=True),
        fedwcm.load_model("run", model="models_of_one_s_own:tiny"),
    ):
        assert sum(p.numel() for p in model.parameters()) == 64 * 16 + 16 + 16 * 10 + 10
    again = fedwcm.run("fedwcm", **options)
    assert again.history[-1].test_loss == result.history[-1].test_loss


def test_batchnorm_model_trains_and_its_statistics_are_saved(tmp_path: Path) -> None:
    options: Any = {**SMALL, "rounds": 1, "settings": {"model.norm": "batch", "model.width": 4}}
    result = fedwcm.run("fedwcm", out=tmp_path / "run", model="resnet8", **options)
    state = fedwcm.load_model(tmp_path / "run").state_dict()
    means = [value for name, value in state.items() if name.endswith("running_mean")]
    assert means
    assert all(bool(mean.abs().sum() > 0) for mean in means)
    assert fedwcm.evaluate(tmp_path / "run", "digits").test_accuracy == result.summary.final_accuracy


def test_normalizer_centres_and_scales_per_channel_and_survives_a_constant_one() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(50, 4, 4, 3)).astype(np.uint8)
    images[..., 2] = 7
    scaled = Normalizer.fit(images)(images)
    assert scaled.shape == (50, 3, 4, 4)
    assert scaled.dtype == np.float32
    assert np.allclose(scaled.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    assert np.allclose(scaled.std(axis=(0, 2, 3)), [1, 1, 0], atol=1e-5)


def test_augmentation_flips_and_crops_as_drawn() -> None:
    images = torch.arange(2 * 3 * 1 * 5 * 5, dtype=torch.float32).reshape(2, 3, 1, 5, 5)
    crop = FlipCrop(pad=2)
    still = torch.tensor([0, 2, 2]).expand(2, 3, 3)
    assert torch.equal(crop.apply(images, still), images)
    mirrored = torch.tensor([1, 2, 2]).expand(2, 3, 3)
    assert torch.equal(crop.apply(images, mirrored), images.flip(-1))
    corner = torch.tensor([0, 0, 0]).expand(2, 3, 3)
    moved = crop.apply(images, corner)
    assert torch.equal(moved[..., 2:, 2:], images[..., :3, :3])
    assert bool((moved[..., :2, :] == 0).all())
    assert bool((moved[..., :, :2] == 0).all())


def test_augmentation_draws_have_the_stated_frequencies() -> None:
    draws = FlipCrop().draw(generator(0, Purpose.AUGMENT), 200, 50)
    assert draws.shape == (200, 50, 3)
    assert draws[..., 0].mean() == pytest.approx(0.5, abs=0.02)
    moved = (draws[..., 1:] != 4).any(axis=-1).mean()
    assert moved == pytest.approx(0.5 * (1 - 1 / 81), abs=0.02)
    assert draws[..., 1:].min() == 0
    assert draws[..., 1:].max() == 8


def test_the_same_seed_gives_the_same_metrics_and_another_seed_others() -> None:
    one, again, other = (fedwcm.run("fedwcm", seed=seed, **{**SMALL, "rounds": 1}) for seed in (0, 0, 1))
    assert timeless(one.history) == timeless(again.history) != timeless(other.history)


def test_augmented_run_agrees_between_backends() -> None:
    options: Any = {**SMALL, "rounds": 2, "augment": True}
    losses = [
        fedwcm.run("fedavg", backend=b, **options).history[-1].test_loss for b in ("sequential", "vectorized")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    plain = fedwcm.run("fedavg", **{**options, "augment": False}).history[-1].test_loss
    assert plain != pytest.approx(losses[0], rel=1e-4)
