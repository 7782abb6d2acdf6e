"""A model's file that cannot be read is named, with what is wrong with it."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import fedwcm
from fedwcm.cli import main

NO_JSON = "have no JSON under .fedwcm"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    fedwcm.run("fedavg", dataset="digits", clients=2, rounds=1, epochs=1, report=False, out=folder)
    return folder


@pytest.fixture
def path(trained: Path, tmp_path: Path) -> Path:
    """The file of a model, to be damaged."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run" / "model.safetensors"


def assert_refused(path: Path, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        fedwcm.load_model(path.parent)
    assert str(refused.value).startswith(str(path))
    assert main(["evaluate", str(path.parent)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, NO_JSON),
        ({"other": "1"}, NO_JSON),
        ({"fedwcm": "{"}, NO_JSON),
        ({"fedwcm": "[]"}, "not an object"),
    ],
)
def test_a_file_that_is_no_model_is_refused_by_name(
    path: Path, metadata: dict[str, str] | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(load_file(path), path, metadata=metadata)
    assert_refused(path, message, capsys)


@pytest.mark.parametrize("kept", [0, 100, 0.99])
def test_a_damaged_model_is_refused_by_name(path: Path, kept: float, capsys: pytest.CaptureFixture[str]) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    assert_refused(path, "is damaged", capsys)
