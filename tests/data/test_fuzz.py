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


FORMATS = ("idx", "cifar-binary", "npz", "csv", "json-lines", "parquet")
FORMATS += ("image-folder", "tiny-imagenet", "by-schema")  # type: ignore[assignment]
"""One reader of every format; the others are variants: packed, in a folder, with other columns."""


def test_garbled_files_are_read_or_refused(tmp_path: Path) -> None:
    fuzz(200, tmp_path, *FORMATS, timeout=300)


def test_garbled_files_of_other_variants_are_read_or_refused(tmp_path: Path) -> None:
    fuzz(40, tmp_path, *(name for name in READERS if name not in FORMATS), timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_hundred_thousand_garbled_files_are_read_or_refused(tmp_path: Path, name: str) -> None:
    fuzz(100_000, tmp_path, name, timeout=7200)
