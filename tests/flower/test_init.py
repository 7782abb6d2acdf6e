"""`fedwcm flower init`: an app that Flower accepts and that runs as it is."""

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.common.config import flatten_dict, get_project_config

from fedwcm.cli import flower as command
from fedwcm.flower.init import write_app
from fedwcm.flower.server import serve

from .wire import WireGrid

FILES = {"pyproject.toml", "README.md"} | {
    f"fedwcm_app/{name}.py" for name in ("__init__", "client_app", "server_app", "task")
}


def run_command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    chosen = parser.parse_args(["flower", *arguments])
    code: int = chosen.do(chosen)
    return code


def test_init_writes_a_whole_app_that_flower_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    assert run_command("init", str(folder)) == 0
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == FILES
    assert "flwr run . --stream" in capsys.readouterr().out
    components = get_project_config(folder)["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": "fedwcm_app.server_app:app", "clientapp": "fedwcm_app.client_app:app"}


def test_init_does_not_touch_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty"):
        run_command("init", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_app_that_is_written_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_app(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    client, task = (importlib.import_module(f"fedwcm_app.{name}") for name in ("client_app", "task"))
    config = flatten_dict(get_project_config(tmp_path)["tool"]["flwr"]["app"]["config"])
    nodes = WireGrid(client.app, config, 3, {"num-partitions": 3})
    finished = serve(nodes, config, task.model, task.test_data)
    assert finished is not None
    assert finished.summary.final_accuracy > 0.85


def test_without_flower_one_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['flwr'] = None; import fedwcm.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: fedwcm.flower needs Flower: pip install 'fedwcm[flower]'"
