"""The data sets, each in three parts; where clients are people, the parts share none.

They are read from the folder that FEDWCM_NATURAL names, `data/natural` by default; `fedwcm reproduce natural` says
where each is to be had. The Dirichlet sets are the recipe's, which `python -m benchmarks.recipe.data` writes.
"""

import csv
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.recipe.data import FOLDER as DIRICHLET_FOLDER
from benchmarks.recipe.data import HELD_OUT
from fedwcm.data.longtail import long_tail
from fedwcm.data.partition import Equal

FOLDER = Path(os.environ.get("FEDWCM_NATURAL", "data/natural"))
FILES = {
    "beats": "mitbih.npz",
    "attacks": "nslkdd.npz",
    "activities": "wisdm.npz",
    "storms": "storms.csv",
    "sites": "sites.npz",
}
DIRICHLET = {
    "fashion 1:100 β.1": ("fashion-mnist", 0.01, 0.1),
    "cifar10 1:10 β.6": ("cifar10", 0.1, 0.6),
    "cifar10 1:100 β.1": ("cifar10", 0.01, 0.1),
    "cifar100 1:10 β.1": ("cifar100", 0.1, 0.1),
}
"""The data, the rarest class over the most frequent, and β of forty clients of equal size."""

CLIENTS, MOST, MOST_OF_100, VALIDATING = 40, 800, 40, 10
LOCAL: dict[str, object] = {"participation.fraction": 0.2, "local.epochs": 5}
"""What the recipe trains such clients with."""

TEST_PATIENTS = (
    *(100, 103, 105, 111, 113, 117, 121, 123, 200, 202, 210),
    *(212, 213, 214, 219, 221, 222, 228, 231, 232, 233, 234),
)
"""The second half of the division of de Chazal, O'Dwyer and Reilly (2004), which tests on patients of its own."""

Part = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class NaturalSet:
    """Samples for training, with their clients, for validation and for the test; options that it asks for."""

    train: Part
    clients: NDArray[Any]
    val: Part
    test: Part
    settings: dict[str, object] = field(default_factory=dict)


def available() -> list[str]:
    """Return the names of the natural sets whose files are in the folder."""
    return [name for name, file in FILES.items() if (FOLDER / file).exists()]


def load(name: str, seed: int, draw: int = 0) -> NaturalSet:
    """Return a set. Who tests is the same for all seeds; who validates is drawn by the seed, if it can be.

    A seed has several draws; of the Dirichlet sets, whose validation images are set aside, only one.
    """
    if name in DIRICHLET:
        return _long_tailed(name, seed)
    rng = np.random.default_rng([seed, draw] if draw else seed)
    path = FOLDER / FILES[name]
    if name == "storms":
        x, y, clients = _read_storms(path)
    else:
        arrays = np.load(path)
        if "x_test" in arrays:
            return _with_rows_for_validation(arrays, rng)
        x, y, clients = arrays["x"].astype(np.float32), arrays["y"], arrays["client"]
    people = np.random.default_rng(0).permutation(np.unique(clients))
    test = np.isin(people, TEST_PATIENTS) if name == "beats" else np.arange(len(people)) < len(people) // 4
    others = rng.permutation(people[~test])
    groups = others[len(others) // 4 :], others[: len(others) // 4], people[test]
    train, val, held_out = (np.isin(clients, group) for group in groups)
    return NaturalSet((x[train], y[train]), clients[train], (x[val], y[val]), (x[held_out], y[held_out]))


def _with_rows_for_validation(arrays: Any, rng: np.random.Generator) -> NaturalSet:
    """Return a set with a test part of its own; a tenth of the training rows validate."""
    x, y, clients = arrays["x_train"], arrays["y_train"], arrays["client_train"]
    val = rng.random(len(y)) < 0.1
    test = arrays["x_test"], arrays["y_test"]
    return NaturalSet((x[~val], y[~val]), clients[~val], (x[val], y[val]), test)


def _long_tailed(name: str, seed: int) -> NaturalSet:
    """Return a long tail over Dirichlet clients; validation and test are balanced."""
    source, imbalance, beta = DIRICHLET[name]
    phases = ("judge", "judge") if source == "cifar100" else ("choose", "final")
    arrays, test = (np.load(DIRICHLET_FOLDER / f"{source}-{phase}.npz") for phase in phases)
    x, y, val, most = arrays["x_train"], arrays["y_train"], (arrays["x_test"], arrays["y_test"]), MOST
    if source == "cifar100":  # its file has no images that are set aside
        aside = np.concatenate([np.flatnonzero(y == c)[:VALIDATING] for c in np.unique(y)])
        val, most = (x[aside], y[aside]), MOST_OF_100
        x, y = np.delete(x, aside, axis=0), np.delete(y, aside)
    rng = np.random.default_rng([seed, HELD_OUT])
    rows = long_tail(y, imbalance, rng, n_max=most)
    x, y = x[rows], y[rows]
    clients = np.empty(len(y), dtype=np.int64)
    for client, own in enumerate(Equal(clients=CLIENTS, beta=beta)(y, rng)):
        clients[own] = client
    return NaturalSet((x, y), clients, val, (test["x_test"], test["y_test"]), LOCAL)


def _read_storms(path: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = ("month", "hour", "lat", "long", "wind", "pressure")
    x = np.array([[float(row[column]) for column in columns] for row in rows], dtype=np.float32)
    _, y = np.unique([row["status"] for row in rows], return_inverse=True)
    return x, y, np.array([row["season"] for row in rows])
