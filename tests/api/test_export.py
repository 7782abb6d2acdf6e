"""An exported model takes raw data, and says of it what `fedwcm.predict` says."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import fedwcm
from fedwcm.api import exporting
from fedwcm.cli import main
from fedwcm.experiment.folder import RunFolder

RNG = np.random.default_rng(0)
NAMES = np.array(["cat", "dog", "owl"])
SMALL: dict[str, Any] = {"rounds": 1, "epochs": 1, "clients": 2, "report": False}

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
    reason="onnx, onnxruntime or onnxscript is not installed: pip install 'fedwcm[export]'",
)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


class Looking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.words(x).mean(dim=1))
        return logits


TABLE = (RNG.normal(size=(60, 4)) * [1, 10, 100, 0.1] + 5).astype(np.float32)
IMAGES = RNG.integers(0, 256, size=(60, 8, 8, 3), dtype=np.uint8)
WINDOWS = (RNG.normal(size=(60, 6, 3)) * 7).astype(np.float32)
TOKENS = RNG.integers(0, 20, size=(60, 6))

CASES: dict[str, tuple[np.ndarray, Any, dict[str, Any]]] = {
    "mlp": (TABLE, "mlp", {"model.hidden": [8]}),
    "cnn": (IMAGES, "cnn", {}),
    "resnet, batch norm": (IMAGES, "resnet8", {"model.width": 4, "model.norm": "batch"}),
    "resnet, group norm": (IMAGES, "resnet8", {"model.width": 4, "model.norm": "group"}),
    "LSTM": (WINDOWS, Recurrent, {}),
    "embedding": (TOKENS, Looking, {}),
}


def trained(case: str, folder: Path) -> tuple[np.ndarray, Any]:
    """Train a moment; the raw inputs, and what takes the weights if a name does not."""
    x, model, settings = CASES[case]
    y = NAMES[np.arange(len(x)) % 3]
    fedwcm.run("fedavg", dataset=(x, y), model=model, settings=settings, out=folder, **SMALL)
    return x, None if isinstance(model, str) else model


@pytest.mark.parametrize("case", ["mlp", "resnet, batch norm", "LSTM", "embedding"])
def test_torchscript_takes_raw_data_in_batches_of_any_size(case: str, tmp_path: Path) -> None:
    x, model = trained(case, tmp_path / "run")
    path = fedwcm.export(tmp_path / "run", "torchscript", tmp_path / "out" / "model.pt", model=model)
    files = {"classes.json": ""}
    loaded = torch.jit.load(path, _extra_files=files)
    assert json.loads(files["classes.json"]) == [*NAMES]
    expected = fedwcm.predict(tmp_path / "run", x, model=model).probabilities
    for rows in (slice(0, 1), slice(0, 60)):
        assert loaded(torch.from_numpy(x[rows]))[1].detach().numpy() == pytest.approx(expected[rows], abs=1e-5)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_onnx_takes_raw_data_in_batches_of_any_size(case: str, tmp_path: Path) -> None:
    import onnxruntime

    x, model = trained(case, tmp_path / "run")
    path = fedwcm.export(tmp_path / "run", "onnx", tmp_path / "model.onnx", model=model)
    assert [file.name for file in tmp_path.glob("model.onnx*")] == ["model.onnx"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == [*NAMES]
    assert [each.name for each in session.get_inputs()] == ["input"]
    assert [each.name for each in session.get_outputs()] == ["logits", "probabilities"]
    expected = fedwcm.predict(tmp_path / "run", x, model=model).probabilities
    for rows in (slice(0, 1), slice(0, 60)):
        found = session.run(["probabilities"], {"input": x[rows]})[0]
        assert found == pytest.approx(expected[rows], abs=1e-5)


def test_a_state_dict_has_the_weights_the_normaliser_and_the_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("mlp", tmp_path / "run")
    given = ["export", str(tmp_path / "run"), "--format", "state-dict", "--out", str(tmp_path / "m.safetensors")]
    assert main(given) == 0
    assert "state-dict in" in capsys.readouterr().out
    module, normalizer = fedwcm.load_model(tmp_path / "run"), fedwcm.load_normalizer(tmp_path / "run").normalizer
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["classes"]) == [*NAMES]
        for name, value in module.state_dict().items():
            assert torch.equal(file.get_tensor(name), value)
        assert file.get_tensor("normalizer.mean").numpy() == pytest.approx(normalizer.mean)
        assert file.get_tensor("normalizer.std").numpy() == pytest.approx(normalizer.std)


def test_an_export_that_differs_is_an_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("mlp", tmp_path / "run")
    write = exporting.WRITERS["torchscript"]

    def slightly_off(*arguments: Any) -> Any:
        run = write(*arguments)
        return lambda x: run(x) + 1e-3  # type: ignore[misc]

    monkeypatch.setitem(exporting.WRITERS, "torchscript", slightly_off)
    with pytest.raises(ValueError, match=r"differs from the trained one by 0\.00"):
        fedwcm.export(tmp_path / "run", "torchscript", tmp_path / "model.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert RunFolder(tmp_path / "run").model_file.exists()


def test_unknown_formats_and_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="onnx"):
        fedwcm.export(tmp_path, "onx", tmp_path / "model.onnx")  # type: ignore[arg-type]
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs onnx, onnxscript, onnxruntime: pip install 'fedwcm\[export\]'"):
        fedwcm.export(tmp_path, "onnx", tmp_path / "model.onnx")
