"""Peak memory of a run on large data, over the size of its file."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.environments import ROOT

SAMPLES, SHAPE = 160_000, (32, 32, 3)
"""Half a gigabyte of images."""

CHILD = """
import json, sys
import numpy as np
import fedwcm
from benchmarks.process_tree import largest_ever

def run(source, clients):
    fedwcm.run("fedavg", dataset=source, clients=clients, partition="iid", imbalance="none", model="mlp",
               participation=0.1, rounds=1, epochs=1, backend="sequential", settings={"model.hidden": [8]})

run((np.zeros((300, 32, 32, 3), np.uint8), np.arange(300) % 10), 10)
before = largest_ever("self")
run(sys.argv[1], 100)
print(json.dumps(largest_ever("self") - before))
"""
"""Plays a tiny run first, so that what the program itself takes does not count."""


def measure() -> dict[str, float]:
    """Peak memory over the bytes of the inputs, for each form in which they can be stored."""
    x, y = np.random.default_rng(0).integers(256, size=(SAMPLES, *SHAPE), dtype=np.uint8), np.arange(SAMPLES) % 10
    cut = SAMPLES * 9 // 10
    arrays: dict[str, NDArray[Any]] = {
        "x_train": x[:cut],
        "y_train": y[:cut],
        "x_test": x[cut:],
        "y_test": y[cut:],
    }
    measured = {}
    for form in ("npz", "npy"):
        with tempfile.TemporaryDirectory() as folder:
            measured[form] = round(_peak(_written(form, Path(folder), arrays)) / x.nbytes, 4)
    return measured


def _written(form: str, folder: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    if form == "npz":
        np.savez(folder / "set.npz", **arrays)  # type: ignore[arg-type]  # it takes any name
        return folder / "set.npz"
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def _peak(source: Path) -> int:
    command = [sys.executable, "-c", CHILD, str(source)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    peak: int = json.loads(ended.stdout)
    return peak
