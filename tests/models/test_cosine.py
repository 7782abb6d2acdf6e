"""The cosine head: directions only, trained and stacked as any other head."""

import pytest
import torch

import fedwcm
from fedwcm.models import MODELS, build_model
from fedwcm.models.base import CosineLinear

SHAPES = {"mlp": (12,)}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet34"])
def test_every_model_takes_it_and_its_scores_are_cosines(name: str) -> None:
    shape = SHAPES.get(name, (3, 8, 8))
    model = build_model(name, shape, 5, 0, head="cosine").eval()
    features, head = model.body(torch.randn(4, *shape)), model.head
    assert isinstance(head, CosineLinear)
    expected = torch.stack([torch.cosine_similarity(features, row[None], dim=-1) for row in head.weight], dim=1)
    torch.testing.assert_close(head(features), expected)
    torch.testing.assert_close(head(7 * features), expected)


def test_ldam_trains_it_and_stacked_clients_agree_with_single_ones() -> None:
    settings = {"model.head": "cosine", "loss.normalize": False}
    runs = [
        fedwcm.run("fedavg", dataset="digits", clients=4, rounds=4, loss="ldam", backend=name, settings=settings)
        for name in ("sequential", "vectorized")
    ]
    first, second = (run.summary for run in runs)
    assert first.final_accuracy == pytest.approx(second.final_accuracy, abs=0.02)
    assert (first.final_accuracy or 0) > 0.6


@pytest.mark.parametrize("loss", ["ldam", "prior_ce[normalize=true]"])
def test_a_loss_that_normalises_once_more_is_refused(loss: str) -> None:
    with pytest.raises(
        ValueError, match=r"loss\.normalize = True of the loss \w+ is not allowed with model\.head"
    ):
        fedwcm.run("fedavg", dataset="digits", clients=4, rounds=1, loss=loss, model="mlp[head=cosine]")
