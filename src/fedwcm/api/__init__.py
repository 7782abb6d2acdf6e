"""The public functions, one file each. Most have a command of the same name, which is a thin wrapper."""

from fedwcm.api.comparison import compare
from fedwcm.api.comparison_result import Comparison
from fedwcm.api.division import Division, partition, partitions
from fedwcm.api.evaluation import evaluate
from fedwcm.api.exporting import export
from fedwcm.api.opening import open
from fedwcm.api.personalization import personalize
from fedwcm.api.prediction import Predictions, predict
from fedwcm.api.result import Result
from fedwcm.api.trained import load, normalizer
from fedwcm.api.training import run
from fedwcm.api.tuning import tune

__all__ = [
    "Comparison",
    "Division",
    "Predictions",
    "Result",
    "compare",
    "evaluate",
    "export",
    "load",
    "normalizer",
    "open",
    "partition",
    "partitions",
    "personalize",
    "predict",
    "run",
    "tune",
]
