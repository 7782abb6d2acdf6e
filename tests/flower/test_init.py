"""`fedwcm flower init`: an app that Flower accepts and that runs as it is."""

import argparse
import importlib
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from flwr.common.config import flatten_dict, get_project_config

from fedwcm.cli import flower as command
from fedwcm.config.schema import LocalOptions
from fedwcm.engine.options import Aggregation
from fedwcm.flower.app.init import flower_init, package_name
from fedwcm.flower.app.options import FlowerOptions, read
from fedwcm.flower.server.deployment import serve
from fedwcm.flower.template.fedwcm_app import task

from .wire import WireGrid

FILES = {"pyproject.toml", "README.md"} | {
    f"our_clinics/{name}.py" for name in ("__init__", "client_app", "server_app", "task")
}


def run_command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    chosen = parser.parse_args(["flower", *arguments])
    code: int = chosen.execute(chosen)
    return code


def test_init_writes_a_whole_app_that_flower_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "our-clinics"
    assert run_command("init", str(folder)) == 0
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == FILES
    assert "flwr run . --stream" in capsys.readouterr().out
    components = get_project_config(folder)["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": "our_clinics.server_app:app", "clientapp": "our_clinics.client_app:app"}
    assert get_project_config(folder)["project"]["name"] == "our-clinics"
    for path in folder.rglob("*.*"):
        assert "fedwcm_app" not in path.read_text()


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("My App", "my_app"),
        ("3 clinics", "app_3_clinics"),
        ("torch", "torch_app"),
        ("class", "class_app"),
        ("-", "app"),
    ],
)
def test_an_app_has_its_folder_s_name_as_far_as_a_package_can(name: str, package: str) -> None:
    assert package_name(Path(name)) == package


def test_every_option_is_in_the_config_of_the_app_and_valid(tmp_path: Path) -> None:
    flower_init(tmp_path / "app")
    config = flatten_dict(get_project_config(tmp_path / "app")["tool"]["flwr"]["app"]["config"])
    for section, cls in {"local": LocalOptions, "aggregation": Aggregation, "flower": FlowerOptions}.items():
        assert {f"{section}.{field.name}" for field in fields(cls)} <= set(config)
    options = read(config)
    assert (options.config.method.name, options.config.local.batch_size) == ("fedwcm", 10)
    assert options.federation == FlowerOptions(patience=60.0)
    written = (tmp_path / "app" / "pyproject.toml").read_text()
    assert "# maximum norm of a step's direction" in written
    assert "# \n" not in written, "an option has no description"


def test_init_does_not_touch_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty"):
        run_command("init", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_app_that_is_written_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "training_example"
    flower_init(folder)
    monkeypatch.syspath_prepend(str(folder))
    client, own = (importlib.import_module(f"training_example.{name}") for name in ("client_app", "task"))
    config = flatten_dict(get_project_config(folder)["tool"]["flwr"]["app"]["config"])
    nodes = WireGrid(client.app, config, 3, {"num-partitions": 3})
    finished = serve(nodes, config, own.model, own.test_data)
    assert finished is not None
    assert finished.summary.final_accuracy > 0.85


def test_the_app_s_test_data_are_normalised_as_its_clients_data_are() -> None:
    x, _ = task.test_data({"app.imbalance": 0.5})
    divided = task.digits(3, 0.5)
    np.testing.assert_array_equal(x, divided.normalizer(divided.dataset.x_test))
    assert not np.array_equal(x, task.test_data({"app.imbalance": 0.01})[0])


def test_without_flower_one_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['flwr'] = None; import fedwcm.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: fedwcm.flower needs Flower: pip install 'fedwcm[flower]'"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("local.lrr=0.05", "unknown option 'local.lrr'. Did you mean 'local.lr'?"),
        ('method.name="fedwcmm"', "'fedwcmm'. Did you mean 'fedwcm'?"),
        ("local.lr=-1.0", "lr = -1.0 is not allowed"),
        ("app.imbalanced=0.5", "Did you mean 'app.imbalance'?"),
        ("local.lr=", "--run-config 'local.lr=' is not allowed: it must be KEY=VALUE"),
        ("run.rounds=3 local.lr", "--run-config 'local.lr' is not allowed: it must be KEY=VALUE"),
        ("local.lr = 0.1", "--run-config 'local.lr' is not allowed: it must be KEY=VALUE"),
        ('local.lr="x', """--run-config 'local.lr="x' cannot be read: """),
    ],
)
def test_check_names_what_flower_would_only_refuse(given: str, complaint: str, tmp_path: Path) -> None:
    flower_init(tmp_path / "app")
    with pytest.raises(ValueError, match=re.escape(complaint)):
        run_command("check", str(tmp_path / "app"), "--run-config", given)


def test_check_names_a_misspelt_key_of_the_file(tmp_path: Path) -> None:
    flower_init(tmp_path / "app")
    file = tmp_path / "app" / "pyproject.toml"
    file.write_text(file.read_text().replace("batch_size =", "batchsize ="))
    with pytest.raises(ValueError, match=r"unknown option 'local\.batchsize'"):
        run_command("check", str(tmp_path / "app"))


def test_check_says_that_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flower_init(tmp_path / "app")
    given = 'app.imbalance=0.5 method.name="fedcm[alpha=0.2]"'
    assert run_command("check", str(tmp_path / "app"), "--run-config", given) == 0
    assert "it trains fedcm" in capsys.readouterr().out


def test_init_prints_a_command_that_a_shell_can_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("init", str(tmp_path / "2 be")) == 0
    command = capsys.readouterr().out.splitlines()[1]
    assert shlex.split(command)[:3] == ["cd", str(tmp_path / "2 be"), "&&"]
