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
    from fedwcm.api.comparison import compare as compare
    from fedwcm.api.comparison_result import Comparison as Comparison
    from fedwcm.api.comparison_result import open_run as open_run
    from fedwcm.api.evaluation import Predictions as Predictions
    from fedwcm.api.evaluation import evaluate as evaluate
    from fedwcm.api.evaluation import predict as predict
    from fedwcm.api.exporting import export as export
    from fedwcm.api.operating import calibrate as calibrate
    from fedwcm.api.operating import choose_operating_point as choose_operating_point
    from fedwcm.api.partitioning import partition as partition
    from fedwcm.api.partitioning import partitions as partitions
    from fedwcm.api.personalization import personalize as personalize
    from fedwcm.api.result import Result as Result
    from fedwcm.api.study import Study as Study
    from fedwcm.api.study import study as study
    from fedwcm.api.trained import client_state as client_state
    from fedwcm.api.trained import load_model as load_model
    from fedwcm.api.trained import load_normalizer as load_normalizer
    from fedwcm.api.training import run as run
    from fedwcm.api.tuning import tune as tune
    from fedwcm.cli.listing import list_names as list_names
    from fedwcm.core.batch import Sampler as Sampler
    from fedwcm.core.loss import Loss as Loss
    from fedwcm.core.method import Method as Method
    from fedwcm.dashboard.frame import watch as watch
    from fedwcm.data import Dataset as Dataset
    from fedwcm.data.partition import Partition as Partition
    from fedwcm.diagnosis import bench as bench
    from fedwcm.diagnosis import doctor as doctor
    from fedwcm.engine.participation import Participation as Participation
    from fedwcm.experiment.partitioning import PartitionedData as PartitionedData
    from fedwcm.experiment.trackers import Tracker as Tracker
    from fedwcm.flower.app.init import flower_check as flower_check
    from fedwcm.flower.app.init import flower_init as flower_init
    from fedwcm.metrics.own import Evaluated as Evaluated
    from fedwcm.reports.write import report as report
    from fedwcm.reproduction.command import reproduce as reproduce

__version__ = "0.1.0"
_PUBLIC = {
    "api.comparison": ("compare",),
    "api.comparison_result": ("Comparison", "open_run"),
    "api.evaluation": ("Predictions", "evaluate", "predict"),
    "api.exporting": ("export",),
    "api.operating": ("calibrate", "choose_operating_point"),
    "api.partitioning": ("partition", "partitions"),
    "api.personalization": ("personalize",),
    "api.result": ("Result",),
    "api.study": ("Study", "study"),
    "api.trained": ("client_state", "load_model", "load_normalizer"),
    "api.training": ("run",),
    "api.tuning": ("tune",),
    "cli.listing": ("list_names",),
    "core.batch": ("Sampler",),
    "core.loss": ("Loss",),
    "core.method": ("Method",),
    "dashboard.frame": ("watch",),
    "data": ("Dataset",),
    "data.partition": ("Partition",),
    "diagnosis": ("bench", "doctor"),
    "engine.participation": ("Participation",),
    "experiment.partitioning": ("PartitionedData",),
    "experiment.trackers": ("Tracker",),
    "flower.app.init": ("flower_check", "flower_init"),
    "metrics.own": ("Evaluated",),
    "reports.write": ("report",),
    "reproduction.command": ("reproduce",),
}
"""The public names, by the module that defines them."""

_HOMES = {name: f"fedwcm.{module}" for module, names in _PUBLIC.items() for name in names}
__all__ = [name for name in _HOMES if not name.startswith("flower_")]  # those need Flower


def __getattr__(name: str) -> object:
    """Return a public name, imported at first use: `fedwcm.balance` alone needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedwcm' has no attribute {name!r}")
    if _HOMES[name] not in sys.modules:
        _import_quickly(_HOMES[name])
    return getattr(import_module(_HOMES[name]), name)


def _import_quickly(module: str) -> None:
    """Import a module without looking for garbage, of which an import makes none: it would take a third longer.

    A command that is stopped meanwhile ends at once: torch, interrupted in its C++, would abort with its stack.
    """
    from fedwcm.experiment.interrupts import ending_at_once

    collecting = gc.isenabled()
    gc.disable()
    try:
        with ending_at_once():
            import_module(module)
    finally:
        gc.freeze()
        gc.unfreeze()  # what was made is now in the oldest generation, which is searched last
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
