"""Partitions: how the samples of a data set are spread over clients.

    parts = Equal(clients=100, beta=0.1)(labels, np.random.default_rng(0))

A new partition is a frozen dataclass that fits `Partition`, with an entry in `PARTITIONS`.
"""

from typing import Any

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
