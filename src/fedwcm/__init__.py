"""FedWCM: federated learning on long-tailed, non-IID data.

import fedwcm

result = fedwcm.run("fedwcm", dataset="digits", clients=20, rounds=30)
result  # prints in five lines; result.summary.few, result.history, result.model, result.plot()
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedwcm.api import (
        Comparison,
        PartitionedData,
        Predictions,
        Result,
        compare,
        evaluate,
        export,
        load_model,
        load_normalizer,
        open_run,
        partition,
        partitions,
        personalize,
        predict,
        run,
        tune,
    )
    from fedwcm.core.loss import Loss
    from fedwcm.core.method import Method
    from fedwcm.core.sampler import Sampler
    from fedwcm.data import Dataset
    from fedwcm.data.partition import Partition
    from fedwcm.reports.write import report

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Dataset",
    "Loss",
    "Method",
    "Partition",
    "PartitionedData",
    "Predictions",
    "Result",
    "Sampler",
    "compare",
    "evaluate",
    "export",
    "load_model",
    "load_normalizer",
    "open_run",
    "partition",
    "partitions",
    "personalize",
    "predict",
    "report",
    "run",
    "tune",
]

_HOMES = {
    "Dataset": "fedwcm.data",
    "Loss": "fedwcm.core.loss",
    "Method": "fedwcm.core.method",
    "Partition": "fedwcm.data.partition",
    "Sampler": "fedwcm.core.sampler",
    "report": "fedwcm.reports.write",
}
"""Where what is not in `fedwcm.api` is defined."""


def __getattr__(name: str) -> object:
    """The public names, imported at first use: `fedwcm.balance` alone needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fedwcm' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "fedwcm.api")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
