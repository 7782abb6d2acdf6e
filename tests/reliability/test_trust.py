"""A folder runs no code that the user did not name."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedwcm
from fedwcm.api.description import describe_run
from fedwcm.cli import main
from fedwcm.config.schema import Component
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.models import chosen_model

SMALL: Any = {"dataset": "digits", "clients": 4, "epochs": 1, "rounds": 1, "settings": {"run.workers": 1}}

THEIRS = "ray://theirs.example:10001"

OWN = "from torch import nn\ndef net(classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    fedwcm.run("fedavg", out=folder, **SMALL)
    return folder


@pytest.fixture
def theirs(finished: Path, tmp_path: Path) -> Path:
    """Somebody else's run, whose configuration creates a file when its model is built."""
    folder = tmp_path / "theirs"
    shutil.copytree(finished, folder)
    rewrite(folder, "model", {"name": "subprocess:getoutput", "cmd": f"touch {tmp_path / 'executed'}"})
    return folder


def rewrite(folder: Path, section: str, values: dict[str, object]) -> None:
    path = folder / "config.toml"
    config = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps({**config, section: values}))


def test_loading_a_folder_runs_nothing_and_says_what_it_would_have_run(theirs: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.name = 'subprocess:getoutput' is code.*trust=True, --trust"):
        fedwcm.load_model(theirs)
    with pytest.raises(ValueError, match="trust the folder"):
        fedwcm.evaluate(theirs, "digits")
    with pytest.raises(ValueError, match="trust the folder"):
        fedwcm.predict(theirs, "digits")
    with pytest.raises(ValueError, match="trust the folder"):
        fedwcm.run(out=theirs, resume=True)
    assert not (tmp_path / "executed").exists()


def test_no_command_runs_the_code_of_a_folder(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(theirs / "config.toml")]
    assert main(["evaluate", str(theirs), "--dataset", "digits"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert main(["run", *config, "--out", str(tmp_path / "again")]) == 2
    assert main(["run", *config, "--out", str(theirs), "--resume"]) == 2
    assert main(["compare", *config, "--methods", "fedavg", "--out", str(tmp_path / "all")]) == 2
    assert main(["predict", str(theirs), "digits"]) == 2
    assert main(["partition", *config, "--out", str(tmp_path / "division.png")]) == 0
    assert main(["report", str(theirs)]) == 0
    assert main(["watch", str(theirs), "--once"]) == 0
    assert not (tmp_path / "executed").exists()


def test_trust_allows_it_and_what_is_no_model_is_refused(theirs: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gives the type str: allowed is a torch\.nn\.Module"):
        fedwcm.load_model(theirs, trust=True)
    assert (tmp_path / "executed").exists()


def test_a_class_that_is_no_module_is_not_even_called(tmp_path: Path) -> None:
    named = Component("subprocess:Popen", {"args": ["touch", str(tmp_path / "executed")]})
    with pytest.raises(ValueError, match="it is not called"):
        chosen_model(named, (4,), 2, 0)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("section", ["model", "method", "loss", "sampler"])
def test_every_component_of_a_folder_is_checked(section: str, theirs: Path, tmp_path: Path) -> None:
    rewrite(theirs, "model", {"name": "mlp"})
    rewrite(theirs, section, {"name": "os:system"})
    refused, config = rf"{section}\.name = 'os:system' is code", theirs / "config.toml"
    with pytest.raises(ValueError, match=refused):
        fedwcm.run(out=theirs, resume=True)
    with pytest.raises(ValueError, match=refused):
        fedwcm.run(config=config)
    if section != "method":  # of which a comparison has its own
        with pytest.raises(ValueError, match=refused):
            fedwcm.compare(["fedavg"], [0], tmp_path / "all", config=config)


def test_what_the_user_names_needs_no_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_net.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('[model]\nname = "own_net:net"\n')
    options = ["--dataset", "digits", "--clients", "4", "--rounds", "1", "--epochs", "1", "--quiet"]
    options += ["--set", "run.workers=1"]
    assert main(["run", *options, "--config", "mine.toml", "--out", "run"]) == 0
    assert main(["run", *options, "--model", "own_net:net", "--out", "run", "--resume"]) == 0
    assert "finished already" in capsys.readouterr().err
    named = ["--config", "run/config.toml", "--model", "own_net:net"]
    assert main(["run", *named, "--out", "again", "--quiet"]) == 0
    assert main(["evaluate", "run", "--dataset", "digits", "--trust"]) == 0
    assert main(["evaluate", "run", "--dataset", "digits"]) == 2


def test_no_folder_connects_the_machine_to_another(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(finished, folder)
    rewrite(folder, "run", tomllib.loads((folder / "config.toml").read_text())["run"] | {"ray_address": THEIRS})
    refused = rf"run\.ray_address = '{THEIRS}' of .*theirs is not used"

    def addresses(trust: bool, settings: dict[str, object] | None = None) -> list[str | None]:
        again = describe_run(None, None, settings, {}, trust=trust, resume=True, folder=RunFolder(folder))
        new = describe_run(None, folder / "config.toml", settings, {}, trust=trust)
        return [config.run.ray_address for config in (again, new)]

    with pytest.warns(UserWarning, match=refused):
        assert addresses(trust=False) == [None, None]
    assert addresses(trust=True) == [THEIRS, THEIRS]
    assert addresses(trust=False, settings={"run.ray_address": "ours:1"}) == ["ours:1", "ours:1"]
    shutil.copy(folder / "config.toml", tmp_path / "mine.toml")
    assert describe_run(None, tmp_path / "mine.toml", None, {}).run.ray_address == THEIRS
