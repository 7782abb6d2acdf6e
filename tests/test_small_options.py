"""Options that reach their part from a run's configuration."""

import re

import numpy as np
import pytest

import fedwcm
from fedwcm.config.components import Components
from fedwcm.config.schema import from_settings
from fedwcm.data.augment import FlipCrop

RUN = {"dataset": "digits", "clients": 6, "rounds": 1, "epochs": 1}


def test_the_crop_padding_reaches_the_augmentation() -> None:
    config = from_settings({"data.augment": True, "data.crop_padding": 8})
    trainer = Components.of(config).trainer(config, None, None)  # type: ignore[arg-type]
    assert trainer.augmentation == FlipCrop(8)
    assert FlipCrop(8).draw(np.random.default_rng(0), 50, 50)[..., 1:].max() == 16
    with pytest.raises(ValueError, match="crop_padding"):
        from_settings({"data.crop_padding": -1})


def test_several_clients_hold_keys_and_the_distribution_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tenseal")
    import fedwcm.config.class_distribution

    seen: list[int] = []
    plain = fedwcm.config.class_distribution.sum_counts

    def watched(*arguments: object, key_holders: int = 1, **options: object) -> object:
        seen.append(key_holders)
        return plain(*arguments, key_holders=key_holders, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fedwcm.config.class_distribution, "sum_counts", watched)
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
