"""The oldest and the newest Flower that `pyproject.toml` promises run the app of the quick start."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedwcm.flower.init import write_app
from fedwcm.runs.folder import RunFolder

from .processes import Program, environment, wait_until

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
(LOWEST,) = re.findall(r"flwr\[simulation\]>=(\S+)", " ".join(PROJECT["optional-dependencies"]["flower"]))
CLIENTS, ROUNDS = 2, 2


def environment_with(version: str, folder: Path) -> Path:
    """An environment with this Flower, and everything else from the one that runs the tests; its programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    wanted = f"flwr[simulation]{version}"
    installed = subprocess.run(
        [str(folder / "bin" / "pip"), "install", "-q", wanted], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"{wanted} cannot be installed here: {installed.stderr.strip().splitlines()[-1]}")
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (others,) = (Path(sys.prefix) / "lib").glob("python*/site-packages")
    (packages / "zz_others.pth").write_text(f"{others}\n")
    return folder / "bin"


@pytest.mark.parametrize("version", [f"=={LOWEST}.0", f">={LOWEST}"], ids=["lowest", "newest"])
def test_the_quick_start_runs(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = environment_with(version, tmp_path / "environment")
    write_app(tmp_path / "app")
    out, home = tmp_path / "out", tmp_path / "home"
    options = f'run.rounds={ROUNDS} flower.out="{out}" flower.timeout=600.0'
    command = [str(programs / "flwr"), "run", str(tmp_path / "app"), "--stream", "--run-config", options]
    monkeypatch.setenv("PATH", f"{programs}:{environment(home)['PATH']}")
    run = Program([*command, "--federation-config", f"num-supernodes={CLIENTS}"], home, tmp_path / "run.log")
    try:
        wait_until(lambda: RunFolder(out).finished or run.code not in (None, 0), "the end of the run", 900)
        assert [record.participants for record in RunFolder(out).metrics()] == [CLIENTS] * ROUNDS, run.said
    finally:
        run.kill()
        for left in home.glob("local-superlink/*.pid"):
            subprocess.run(["kill", left.read_text().strip()], check=False)
