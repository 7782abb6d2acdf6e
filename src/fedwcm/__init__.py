"""FedWCM: federated learning on long-tailed, non-IID data.

import fedwcm

result = fedwcm.run("fedwcm", dataset="digits", clients=20, rounds=30)
result.summary.final_accuracy, result.history, result.model
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedwcm.api import Result, evaluate, load, normalizer, partition, partitions, run
    from fedwcm.comparison import compare
    from fedwcm.reports.write import report

__version__ = "0.1.0"
__all__ = ["Result", "compare", "evaluate", "load", "normalizer", "partition", "partitions", "report", "run"]


def __getattr__(name: str) -> object:
    """The public functions, imported at first use: `fedwcm.balance` alone needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fedwcm' has no attribute {name!r}")
    home = {"compare": "fedwcm.comparison", "report": "fedwcm.reports.write"}.get(name, "fedwcm.api")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
