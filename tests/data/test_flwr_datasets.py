"""The way to flwr-datasets and back: where it is installed, which `constraints.txt` does not ask for."""

from typing import Any

import numpy as np
import pytest

import fedwcm

CLIENTS = 5


@pytest.fixture
def rows() -> Any:
    """400 rows of four classes as a data set of the package `datasets`."""
    pytest.importorskip("flwr_datasets")
    datasets = pytest.importorskip("datasets")
    rng, labels = np.random.default_rng(0), np.arange(400) % 4
    features = {f"f{i}": rng.normal(size=400) + labels for i in range(6)}
    return datasets.Dataset.from_dict({**features, "label": labels})


def test_what_its_partitioners_divide_are_clients(rows: Any) -> None:
    datasets, partitioners = map(pytest.importorskip, ("datasets", "flwr_datasets.partitioner"))
    partitioner = partitioners.DirichletPartitioner(CLIENTS, "label", alpha=0.5, min_partition_size=2, seed=0)
    partitioner.dataset = rows
    parts = [partitioner.load_partition(i) for i in range(CLIENTS)]
    named = [part.add_column("client", [i] * len(part)) for i, part in enumerate(parts)]
    data = fedwcm.partition(dataset=datasets.concatenate_datasets(named), label="label", client="client")
    assert len(data) == CLIENTS
    whole = fedwcm.run(
        dataset=datasets.concatenate_datasets(named), label="label", client="client", rounds=3, participation=1.0
    )
    assert (whole.summary.final_accuracy or 0) > 0.3


def test_our_long_tail_is_one_of_its_partitioners(rows: Any) -> None:
    base: Any = pytest.importorskip("flwr_datasets.partitioner").Partitioner

    class LongTail(base):  # type: ignore[misc]
        """As on docs/partitions.md."""

        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.options = options

        @property
        def num_partitions(self) -> int:
            return int(self.options["clients"])

        def load_partition(self, partition_id: int) -> Any:
            labels = np.array(self.dataset["label"])
            numbers = np.arange(len(labels))[:, None]
            data = fedwcm.partition(dataset=(numbers, labels, -1 - numbers, labels), **self.options)
            return self.dataset.select(data.rows[partition_id])

    tail = LongTail(clients=CLIENTS, imbalance=0.1, beta=0.5)
    tail.dataset = rows
    parts = [tail.load_partition(i) for i in range(CLIENTS)]
    counts = np.bincount(np.concatenate([part["label"] for part in parts]), minlength=4)
    assert counts[0] == 100
    assert counts[3] == 10
    assert (np.diff(counts) < 0).all()
