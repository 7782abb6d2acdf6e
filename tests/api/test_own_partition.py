"""A partition of the user's own: what it returns is checked."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.config.flags import config_from
from fedwcm.data.partition import Natural
from fedwcm.experiment.components import Components
from fedwcm.experiment.folder import RunFolder

from .objects import digits


@dataclass(frozen=True)
class Fixed:
    """Returns the parts that it is made with."""

    parts: Any
    clients: int = 2

    def __call__(self, labels: Any, rng: np.random.Generator) -> Any:
        return self.parts


class Plain:
    """Not a dataclass, and without a number of clients."""

    def __call__(self, labels: Any, rng: np.random.Generator) -> Any:
        return np.array_split(np.arange(len(labels)), 3)


def divided(partition: Any, **options: Any) -> Any:
    x, y = digits()
    four = (x[:400], y[:400], x[400:], y[400:])
    return fedwcm.partition(dataset=four, partition=partition, **options).counts


def test_the_rows_of_a_division_are_the_samples_that_it_counts() -> None:
    division = fedwcm.partition(dataset="digits", clients=7, beta=0.3, imbalance=0.1, val_fraction=0.1)
    y = division.dataset.y_train
    assert len(division) == 7
    assert [np.bincount(y[rows], minlength=10).tolist() for rows in division.rows] == division.counts.tolist()
    every = np.concatenate(division.rows)
    assert len(np.unique(every)) == len(every) < len(y)


ROWS = np.arange(400)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([ROWS[:201], ROWS[200:]], r"row 200 2 times, to the parts 0, 1: a row must be given at most once"),
        ([ROWS[:200], np.array([300, 300])], r"row 300 2 times"),
        ([ROWS[:200], ROWS[200:] + 1], r"part 1 has the row 400: rows must be from 0 to 399"),
        ([ROWS[:200] - 1, ROWS[200:]], r"part 0 has the row -1: rows must be"),
        (
            [ROWS[:200], ROWS[200:] / 1],
            r"part 1 is an array of float64 of shape \(200,\): it must be an array of whole",
        ),
        ([ROWS[:200], ROWS < 5], r"part 1 is an array of bool"),
        ([ROWS[:200], [201, 202]], r"part 1 is a list: it must be an array of whole numbers"),
        ([ROWS[:200], ROWS[:0]], r"part 1 is empty: every client must have at least one row"),
        ([ROWS[:200]], r"returned 1 parts: it must be one for each of its clients = 2"),
        ([], "returned an empty list: it must be a list"),
        (None, "returned a NoneType: it must be a list"),
    ],
)
def test_parts_that_are_no_division_are_refused(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"partition Fixed.*{message}"):
        divided(Fixed(parts))


def test_rows_may_be_left_out_and_unsigned() -> None:
    assert divided(Fixed([ROWS[:7].astype(np.uint16), ROWS[20:30]])).sum(axis=1).tolist() == [7, 10]


def test_a_function_or_a_plain_object_divides_but_has_no_options() -> None:
    def halves(labels: Any, rng: np.random.Generator) -> Any:
        return np.array_split(np.arange(len(labels)), 2)

    assert len(divided(halves)) == 2
    assert len(divided(Plain())) == 3
    for partition, name in ((halves, "halves"), (Plain(), "Plain")):
        with pytest.raises(ValueError, match=rf"'partition\.clients': .*{name} has no options.*@dataclass"):
            divided(partition, clients=5)


@dataclass(frozen=True)
class Slices:
    """Consecutive rows."""

    clients: int = 2

    def __call__(self, labels: Any, rng: np.random.Generator) -> Any:
        return np.array_split(np.arange(len(labels)), self.clients)


def in_thirds(labels: Any, rng: np.random.Generator) -> Any:
    return np.array_split(np.arange(len(labels)), 3)


def test_an_instance_its_class_and_its_name_are_the_same_partition() -> None:
    name = f"{__name__}:Slices"
    expected = divided(Slices(clients=5)).tolist()
    assert divided(Slices, clients=5).tolist() == expected
    assert divided(name, clients=5).tolist() == expected
    assert divided(name, settings={"partition.clients": 5}).tolist() == expected
    assert divided(f"{__name__}:in_thirds").tolist() == divided(in_thirds).tolist() == divided(Slices(3)).tolist()
    local: Any = dataclass(frozen=True)(type("Local", (Slices,), {}))  # no import finds it: it stays an object
    assert divided(local, clients=5).tolist() == expected
    assert len(divided(Natural(client_ids=np.arange(400) % 2))) == 2


@dataclass(frozen=True)
class WithDefaults:
    """Options with defaults of its own, one of them none."""

    clients: int = 7
    beta: float | None = None

    def __call__(self, labels: Any, rng: np.random.Generator) -> Any:
        assert self.beta is None
        return np.array_split(np.arange(len(labels)), self.clients)


def test_a_partition_keeps_its_own_defaults() -> None:
    assert len(divided(WithDefaults)) == len(divided(f"{__name__}:WithDefaults")) == 7
    assert len(divided(WithDefaults(clients=3))) == 3
    assert len(divided(partial(in_thirds))) == 3
    both = fedwcm.partitions(["iid", f"{__name__}:WithDefaults"], dataset="digits", clients=4)
    assert [len(division) for division in both.values()] == [4, 4]


def test_a_partition_that_only_a_folder_names_is_not_imported(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.config_file.write_text('[data]\ndataset = "digits"\n[partition]\nname = "no_such_module:part"\n')
    folder.metrics_file.write_text("")
    with pytest.raises(ValueError, match="is code that only the run's folder names"):
        fedwcm.partition(config=folder.config_file)
    with pytest.raises(ValueError, match="cannot be loaded"):
        fedwcm.partition(config=folder.config_file, trust=True)
    assert main(["run", "--config", str(folder.config_file), "--personalize", "epochs=1", "--rounds", "1"]) == 2


def test_what_is_no_partition_is_refused() -> None:
    with pytest.raises(ValueError, match=r"partition = <class 'int'> is not allowed: it must be a name, or a fed"):
        divided(int)
    with pytest.raises(ValueError, match=r"partition 'tests\.nothing:There' cannot be loaded"):
        divided("tests.nothing:There")
    with pytest.raises(ValueError, match=r"unknown option 'partition\.size'"):
        divided(f"{__name__}:Slices", settings={"partition.size": 5})


def test_a_component_without_options_says_so() -> None:
    with pytest.raises(ValueError, match=r"unknown option 'loss\.gamma': CrossEntropy has no options$"):
        Components.of(config_from(settings={"loss.gamma": 2}))
