"""The public functions, one file each. Most have a command of the same name, which is a thin wrapper."""

from fedwcm.api.comparison import compare
from fedwcm.api.comparison_result import Comparison
from fedwcm.api.evaluation import evaluate
from fedwcm.api.exporting import export
from fedwcm.api.opening import open_run
from fedwcm.api.partitioning import partition, partitions
from fedwcm.api.personalization import personalize
from fedwcm.api.prediction import Predictions, predict
from fedwcm.api.result import Result
from fedwcm.api.trained import load_model, load_normalizer
from fedwcm.api.training import run
from fedwcm.api.tuning import tune
from fedwcm.experiment.partitioning import PartitionedData

__all__ = [
    "Comparison",
    "PartitionedData",
    "Predictions",
    "Result",
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
    "run",
    "tune",
]
