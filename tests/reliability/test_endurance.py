"""A long run takes no more memory and no more open files at its end than after its beginning."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest

import fedwcm
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.records import RoundRecord

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


class Observed(Silent):
    """Notes down memory and open files six times or more."""

    def __init__(self, rounds: int) -> None:
        self.every = min(rounds // 6, 50)
        self.megabytes: list[float] = []
        self.files: list[int] = []

    def round(self, number: int, record: RoundRecord) -> None:
        if number % self.every == 0:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.megabytes.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
            self.files.append(len(os.listdir("/proc/self/fd")))


def observe(rounds: int, backend: str, tmp_path: Path) -> Observed:
    observed = Observed(rounds)
    settings = {
        "run.backend": backend,
        "run.workers": 2 if backend == "parallel" else 0,
        "run.eval_every": observed.every,
        "run.checkpoint_every": observed.every,
        "model.hidden": [4],
        "participation.fraction": 0.4,
    }
    options: Any = {
        "dataset": "digits",
        "clients": 5,
        "epochs": 1,
        "batch_size": 64,
        "model": "mlp",
        "rounds": rounds,
    }
    fedwcm.run("scaffold", out=tmp_path / "run", settings=settings, progress=observed, report=False, **options)
    return observed


@pytest.mark.parametrize(
    ("rounds", "backend"),
    [
        (150, "vectorized"),
        pytest.param(20_000, "vectorized", marks=pytest.mark.slow),
        pytest.param(20_000, "parallel", marks=pytest.mark.slow),
    ],
)
def test_memory_and_open_files_stay_flat(rounds: int, backend: str, tmp_path: Path) -> None:
    observed = observe(rounds, backend, tmp_path)
    settled = len(observed.megabytes) // 3
    assert len(set(observed.files[settled:])) == 1
    assert max(observed.megabytes[settled:]) - observed.megabytes[settled] < 8
