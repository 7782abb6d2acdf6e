"""The oldest and the newest Flower that `pyproject.toml` promises run the app of the quick start."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedwcm.experiment.folder import RunFolder
from fedwcm.flower.app.init import flower_init

from .processes import Program, free_port, wait_until

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
(LOWEST,) = re.findall(r"flwr\[simulation\]>=([\d.]+)", " ".join(PROJECT["optional-dependencies"]["flower"]))
CLIENTS, ROUNDS = 3, 2
"""No Flower simulates so many clients unless it is asked to: its defaults are 2, and before 1.32 10."""


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


def end_programs_with(home: Path) -> None:
    """End what `flwr run` leaves behind: a SuperLink in a session of its own, known by Flower's home."""
    mark = f"FLWR_HOME={home}".encode()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


@pytest.mark.parametrize("version", [f"=={LOWEST}.0", f">={LOWEST}"], ids=["lowest", "newest"])
def test_the_quick_start_runs(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = environment_with(version, tmp_path / "environment")
    flower_init(tmp_path / "app")
    out, home = tmp_path / "out", tmp_path / "home"
    options = f'run.rounds={ROUNDS} flower.out="{out}" flower.timeout=600.0'
    command = [str(programs / "flwr"), "run", str(tmp_path / "app"), "--stream", "--run-config", options]
    for name in ("FLWR_LOCAL_CONTROL_API_PORT", "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"):
        monkeypatch.setenv(name, str(free_port()))  # of a SuperLink of its own, not one that runs here already
    command += ["--federation-config", f"num-supernodes={CLIENTS}"]
    run = Program(command, home, tmp_path / "run.log", programs)
    try:
        wait_until(lambda: RunFolder(out).finished or run.code not in (None, 0), "the end of the run", 900)
        assert [record.participants for record in RunFolder(out).metrics()] == [CLIENTS] * ROUNDS, run.output
        assert RunFolder(out).report_file.exists()
    finally:
        run.kill()
        end_programs_with(home)
