"""FedWCM: federated learning on long-tailed, non-IID data.

import fedwcm

result = fedwcm.run("fedwcm", dataset="digits", clients=20, rounds=30)
result  # prints in five lines; result.summary.few, result.history, result.model, result.plot()
"""

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedwcm.api.comparison import compare
    from fedwcm.api.comparison_result import Comparison, open_run
    from fedwcm.api.evaluation import Predictions, evaluate, predict
    from fedwcm.api.exporting import export
    from fedwcm.api.operating import calibrate, choose_operating_point
    from fedwcm.api.partitioning import partition, partitions
    from fedwcm.api.personalization import personalize
    from fedwcm.api.result import Result
    from fedwcm.api.study import Study, study
    from fedwcm.api.trained import client_state, load_model, load_normalizer
    from fedwcm.api.training import run
    from fedwcm.api.tuning import tune
    from fedwcm.cli.listing import list_names
    from fedwcm.core.batch import Sampler
    from fedwcm.core.loss import Loss
    from fedwcm.core.method import Method
    from fedwcm.dashboard.frame import watch
    from fedwcm.data import Dataset
    from fedwcm.data.partition import Partition
    from fedwcm.diagnosis import bench, doctor
    from fedwcm.engine.participation import Participation
    from fedwcm.experiment.partitioning import PartitionedData
    from fedwcm.experiment.trackers import Tracker
    from fedwcm.flower.app.init import flower_check as flower_check
    from fedwcm.flower.app.init import flower_init as flower_init
    from fedwcm.metrics.own import Evaluated
    from fedwcm.reports.write import report
    from fedwcm.reproduction.command import reproduce

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Dataset",
    "Evaluated",
    "Loss",
    "Method",
    "Participation",
    "Partition",
    "PartitionedData",
    "Predictions",
    "Result",
    "Sampler",
    "Study",
    "Tracker",
    "bench",
    "calibrate",
    "choose_operating_point",
    "client_state",
    "compare",
    "doctor",
    "evaluate",
    "export",
    "list_names",
    "load_model",
    "load_normalizer",
    "open_run",
    "partition",
    "partitions",
    "personalize",
    "predict",
    "report",
    "reproduce",
    "run",
    "study",
    "tune",
    "watch",
]

_HOMES = {
    "Comparison": "fedwcm.api.comparison_result",
    "Dataset": "fedwcm.data",
    "Loss": "fedwcm.core.loss",
    "Method": "fedwcm.core.method",
    "Participation": "fedwcm.engine.participation",
    "Partition": "fedwcm.data.partition",
    "PartitionedData": "fedwcm.experiment.partitioning",
    "Predictions": "fedwcm.api.evaluation",
    "Result": "fedwcm.api.result",
    "Sampler": "fedwcm.core.batch",
    "Evaluated": "fedwcm.metrics.own",
    "Study": "fedwcm.api.study",
    "Tracker": "fedwcm.experiment.trackers",
    "bench": "fedwcm.diagnosis",
    "calibrate": "fedwcm.api.operating",
    "choose_operating_point": "fedwcm.api.operating",
    "client_state": "fedwcm.api.trained",
    "compare": "fedwcm.api.comparison",
    "doctor": "fedwcm.diagnosis",
    "evaluate": "fedwcm.api.evaluation",
    "export": "fedwcm.api.exporting",
    "flower_check": "fedwcm.flower.app.init",
    "flower_init": "fedwcm.flower.app.init",
    "list_names": "fedwcm.cli.listing",
    "load_model": "fedwcm.api.trained",
    "load_normalizer": "fedwcm.api.trained",
    "open_run": "fedwcm.api.comparison_result",
    "partition": "fedwcm.api.partitioning",
    "partitions": "fedwcm.api.partitioning",
    "personalize": "fedwcm.api.personalization",
    "predict": "fedwcm.api.evaluation",
    "report": "fedwcm.reports.write",
    "reproduce": "fedwcm.reproduction.command",
    "run": "fedwcm.api.training",
    "study": "fedwcm.api.study",
    "tune": "fedwcm.api.tuning",
    "watch": "fedwcm.dashboard.frame",
}
"""Where each public name is defined. `import *` leaves those of `fedwcm.flower` alone: they need Flower."""


def __getattr__(name: str) -> object:
    """Return the public names, imported at first use: `fedwcm.balance` alone needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedwcm' has no attribute {name!r}")
    home = _HOMES[name]
    if home not in sys.modules:
        _import_quickly(home)
    return getattr(import_module(home), name)


def _import_quickly(module: str) -> None:
    """Import a module without looking for garbage, of which an import makes none: it would take a third longer."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.freeze()
        gc.unfreeze()  # what was made is now in the oldest generation, which is searched last
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
