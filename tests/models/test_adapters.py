"""Models of transformers and timm, adapters of peft, made tiny from a configuration: where these are installed."""

from typing import Any

import pytest

import fedwcm

SMALL: dict[str, Any] = {"dataset": "digits", "clients": 4, "participation": 1.0, "rounds": 2, "epochs": 1}


def tiny() -> Any:
    """A vision transformer with random weights: one layer of 16 dimensions for images of 8×8."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    images = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 10}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, **images))


def trained(model: Any) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("method", ["fedwcm", "scaffold"])
def test_a_model_of_transformers_is_trained_as_it_is(method: str) -> None:
    model = tiny()
    result = fedwcm.run(method, model=model, **SMALL)
    assert result.summary.parameters == trained(model)


def test_of_a_model_with_lora_only_the_adapter_and_the_head_travel() -> None:
    peft = pytest.importorskip("peft")
    where = {"target_modules": ["query", "value", "q_proj", "v_proj"], "modules_to_save": ["classifier"]}
    model = peft.get_peft_model(tiny(), peft.LoraConfig(r=2, **where))
    result = fedwcm.run("fedwcm", model=model, **SMALL)
    every = sum(p.numel() for p in model.parameters())
    assert result.summary.parameters == trained(model) < every / 5
    fedavg = fedwcm.run("fedavg", model=model, **SMALL)
    assert fedavg.history[0].bytes_up == 4 * 4 * trained(model)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    before, after = model.state_dict(), result.model.state_dict()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed == trainable


@pytest.mark.parametrize("frozen", [False, True], ids=["whole", "head alone"])
def test_a_model_of_timm_is_trained_as_it_is_or_its_head_alone(frozen: bool) -> None:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **sizes)
    if frozen:
        model.requires_grad_(False)
        model.get_classifier().requires_grad_(True)
    result = fedwcm.run("creff", model=model, **SMALL, settings={"method.retrain_epochs": 2})
    assert result.summary.parameters == trained(model)
    before, after = model.state_dict(), result.model.state_dict()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed <= {name for name, p in model.named_parameters() if p.requires_grad}
    assert {"head.weight", "head.bias"} <= changed
