"""A model's file that cannot be read is named, with what is wrong with it."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import fedwcm
from fedwcm.cli import main

METADATA = "have no JSON under 'fedwcm'"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    fedwcm.run("fedavg", dataset="digits", clients=2, rounds=1, epochs=1, report=False, out=folder)
    return folder


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, METADATA),
        ({"other": "1"}, METADATA),
        ({"fedwcm": "{"}, METADATA),
        ({"fedwcm": "[]"}, "not an object"),
    ],
)
def test_a_file_that_is_no_model_is_refused_by_name(
    trained: Path, metadata: dict[str, str] | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained / "model.safetensors"
    whole = path.read_bytes()
    save_file(load_file(path), path, metadata=metadata)
    try:
        _assert_refused(trained, message, capsys)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, 0.99])
def test_a_damaged_model_is_refused_by_name(
    trained: Path, kept: float, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    try:
        _assert_refused(trained, "is damaged", capsys)
    finally:
        path.write_bytes(whole)


def _assert_refused(folder: Path, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "model.safetensors"
    with pytest.raises(ValueError, match=message) as refused:
        fedwcm.load_model(folder)
    assert str(refused.value).startswith(str(path))
    assert main(["evaluate", str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}")
