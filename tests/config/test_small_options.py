"""Options that reach their part from a run's configuration."""

import re
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import fedwcm
from fedwcm.config.settings import from_settings
from fedwcm.data import load_dataset
from fedwcm.data.inputs import FlipCrop
from fedwcm.engine.forward import SequentialForward
from fedwcm.engine.network import Network
from fedwcm.experiment.components import Components

RUN = {"dataset": "digits", "clients": 6, "rounds": 1, "epochs": 1}


def test_the_crop_padding_reaches_the_augmentation() -> None:
    config = from_settings({"data.augment": True, "data.crop_padding": 8})
    forward = SequentialForward(Network(nn.Linear(2, 2)))
    trainer = Components.of(config).trainer(config, forward, None)  # type: ignore[arg-type]
    assert trainer.augmentation == FlipCrop(8)
    assert FlipCrop(8).draw(np.random.default_rng(0), 50, 50)[..., 1:].max() == 16
    with pytest.raises(ValueError, match="crop_padding"):
        from_settings({"data.crop_padding": -1})


def test_several_clients_hold_keys_and_the_distribution_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tenseal")
    import fedwcm.experiment.class_distribution

    seen: list[int] = []
    plain = fedwcm.experiment.class_distribution.sum_counts  # type: ignore[attr-defined]

    def watched(*arguments: object, key_holders: int = 1, **options: object) -> object:
        seen.append(key_holders)
        return plain(*arguments, key_holders=key_holders, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fedwcm.experiment.class_distribution, "sum_counts", watched)
    method = "fedwcm[score=local, alpha_rule=local]"
    settings = {"privacy.key_holders": 2, "privacy.score_levels": 0}
    encrypted = fedwcm.run(method, privacy="he", settings=settings, **RUN)  # type: ignore[arg-type]
    clear = fedwcm.run(method, **RUN)  # type: ignore[arg-type]
    assert seen == [2]
    assert encrypted.history[-1].test_loss == clear.history[-1].test_loss
    cost = encrypted.summary.encryption
    assert cost is not None
    assert cost["clients"] == sum(1 for _ in fedwcm.partition(config=encrypted.config).counts)
    assert min(cost.values()) > 0
    assert clear.summary.encryption is None


@pytest.mark.parametrize("shape", [(3,), (5, 2)], ids=["table", "sequence"])
def test_only_images_are_augmented(shape: tuple[int, ...]) -> None:
    own = np.zeros((20, *shape), dtype=np.float32), np.tile(np.arange(2), 10)
    message = rf"data\.augment = True is not allowed: it must be false for inputs of shape {re.escape(str(shape))}"
    with pytest.raises(ValueError, match=message):
        fedwcm.run("fedavg", dataset=own, clients=2, augment=True, rounds=1)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("aggregation.trim", 0.2, r"it must be 0\.1 without aggregation\.rule = trimmed"),
        ("aggregation.norm_lr", 0.5, r"it must be 0\.2 without aggregation\.quantile"),
        ("data.crop_padding", 8, r"it must be 4 without data\.augment"),
        ("privacy.key_holders", 3, r"it must be 1 without privacy\.mode = he"),
        ("privacy.min_contributors", 5, r"it must be 3 without privacy\.mode = he"),
        ("privacy.score_levels", 5, r"it must be 8 without privacy\.mode = he"),
        ("run.patience", 2, "it must be 0 without validation data.*--val-fraction"),
    ],
)
def test_an_option_that_another_turns_off_is_refused(
    option: str, value: object, message: str, tmp_path: Path
) -> None:
    expected = rf"{re.escape(option)} = {value!r} is not allowed: {message}"
    with pytest.raises(ValueError, match=expected):
        fedwcm.run("fedavg", settings={option: value}, **RUN)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=expected):
        fedwcm.compare(["fedavg"], [0], tmp_path, settings={option: value}, **RUN)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["local.steps", "local.epochs", "local.batch_size", "data.n_max", "run.rounds"])
def test_an_absurd_number_is_refused_by_name_with_its_bound(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} = 10{{21}} is not allowed: .*(1,000,000,000|below 2\*\*63)"):
        fedwcm.run("fedavg", **{**RUN, "epochs": None, "rounds": None}, settings={name: 10**21})  # type: ignore
    if name != "run.rounds":
        with pytest.raises(ValueError, match=rf"{name} = 10{{18}} is not allowed: .*at most 1,000,000,000"):
            from_settings({name: 10**18})


def test_the_same_options_are_accepted_where_they_have_an_effect() -> None:
    trimmed = {"aggregation.trim": 0.2, "aggregation.rule": "trimmed"}
    bound = {"aggregation.norm_lr": 0.5, "aggregation.quantile": 0.5, "aggregation.max_norm": 1.0}
    others = {"data.crop_padding": 2, "data.augment": True, "run.select_by": "accuracy", "data.val_fraction": 0.2}
    for settings in (trimmed, {**bound, **others}):
        fedwcm.run("fedavg", settings=settings, **RUN)  # type: ignore[arg-type]


def test_a_test_fraction_is_refused_for_data_with_a_test_part() -> None:
    message = r"test_fraction = 0\.5 is not allowed: it must be left at 0\.2: digits has a test part of its own"
    with pytest.raises(ValueError, match=message):
        fedwcm.run("fedavg", test_fraction=0.5, **RUN)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        fedwcm.partition(dataset=load_dataset("digits"), clients=4, test_fraction=0.5)
