"""The example of the docs, as a package of its own that announces itself by an entry point."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedwcm.testing import check_method

EXAMPLE = Path(__file__).parents[1] / "examples" / "adding-a-method"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment in which the example is installed, as an installer would lay it out."""
    (tmp_path / "fedyogi.py").write_text((EXAMPLE / "fedyogi.py").read_text())
    info = tmp_path / "fedwcm_fedyogi-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fedwcm-fedyogi\nVersion: 0.1.0\n")
    declared = (EXAMPLE / "pyproject.toml").read_text().split('entry-points."fedwcm.methods"]\n')[1].split("\n")[0]
    (info / "entry_points.txt").write_text("[fedwcm.methods]\n" + declared.replace('"', "") + "\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}


def test_the_command_line_picks_it_up(installed: dict[str, str], tmp_path: Path) -> None:
    options = ["--dataset", "digits", "--partition", "fedgrab", "--clients", "8", "--rounds", "3"]
    options += ["--method", "fedyogi", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "fedwcm", "run", *options]
    message = subprocess.run(command, env=installed, check=True, capture_output=True, text=True).stdout
    assert "fedyogi on digits" in message


def test_it_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from fedyogi import FedYogi  # type: ignore[import-not-found]

    check_method(FedYogi)


def test_it_is_thirty_lines() -> None:
    assert len((EXAMPLE / "fedyogi.py").read_text().splitlines()) <= 30


def test_its_mean_square_moves_by_a_bounded_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from fedyogi import FedYogi

    cohort = SimpleNamespace(samples=np.array([10, 30]), limit_shares=lambda weights: weights)
    uploads = SimpleNamespace(sum=lambda key, weights: torch.full((2,), 0.1))
    state = {"mean": torch.zeros(2), "square": torch.tensor([1.0, 0.0])}
    x, after = FedYogi().update(torch.zeros(2), state, uploads, cohort)
    assert after["square"].tolist() == pytest.approx([1.0 - 0.01 * 0.01, 0.01 * 0.01])
    assert x[0] < x[1]
