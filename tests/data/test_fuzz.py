"""Garbled files end in clear errors: no crash, no hang, bounded memory, whichever reader gets them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.fuzz_specimens import READERS

ROOT = Path(__file__).parents[2]


def fuzz(count: int, folder: Path, *names: str, timeout: float) -> None:
    command = [sys.executable, "-m", "tests.data.fuzz", str(count), str(folder), *names]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    last = (folder / "progress").read_text() if (folder / "progress").exists() else "nothing"
    assert run.returncode == 0, f"at {last}: exit status {run.returncode}\n{run.stderr[-2000:]}"
    assert run.stdout.count("refused") == len(names)


def test_garbled_files_are_read_or_refused(tmp_path: Path) -> None:
    fuzz(50, tmp_path, *READERS, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_hundred_thousand_garbled_files_are_read_or_refused(tmp_path: Path, name: str) -> None:
    fuzz(100_000, tmp_path, name, timeout=7200)
