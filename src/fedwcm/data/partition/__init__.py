"""Partitions: how the samples of a data set are spread over clients.

    parts = make_partition("equal", clients=100, beta=0.1)(labels, np.random.default_rng(0))

A new partition is a frozen dataclass that fits `Partition`, with an entry in `PARTITIONS`.
"""

from dataclasses import MISSING, fields
from typing import Any

from fedwcm.core.checks import require_known
from fedwcm.data.partition.equal import IID, Equal, EqualIPF
from fedwcm.data.partition.few_classes import ExtendedDirichlet, Pathological
from fedwcm.data.partition.natural import Natural
from fedwcm.data.partition.protocol import Partition
from fedwcm.data.partition.published import BalanceFL, CReFF, FedGraB
from fedwcm.data.partition.statistics import PartitionStatistics, counts_of, describe

__all__ = [
    "IID",
    "PARTITIONS",
    "BalanceFL",
    "CReFF",
    "Equal",
    "EqualIPF",
    "ExtendedDirichlet",
    "FedGraB",
    "Natural",
    "Partition",
    "PartitionStatistics",
    "Pathological",
    "counts_of",
    "describe",
    "make_partition",
]

PARTITIONS: dict[str, type[Any]] = {
    "equal": Equal,
    "equal-ipf": EqualIPF,
    "fedgrab": FedGraB,
    "creff": CReFF,
    "balancefl": BalanceFL,
    "pathological": Pathological,
    "extended-dirichlet": ExtendedDirichlet,
    "iid": IID,
    "natural": Natural,
}


def make_partition(name: str, **options: Any) -> Partition:
    """Make the partition of this name with these options (the fields of its class in `PARTITIONS`)."""
    require_known("partition", name, PARTITIONS)
    known = {field.name: field for field in fields(PARTITIONS[name])}
    for option in options:
        require_known(f"option of partition {name!r}", option, known)
    missing = [option for option in known if known[option].default is MISSING and option not in options]
    if missing:
        raise ValueError(f"partition {name!r} needs a value for {', '.join(missing)}")
    partition: Partition = PARTITIONS[name](**options)
    return partition
