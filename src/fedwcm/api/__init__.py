"""The public functions, one file each. Each command of the command line is a thin wrapper of one of them."""

from fedwcm.api.comparison import Comparison, compare
from fedwcm.api.evaluation import evaluate
from fedwcm.api.division import Division, partition, partitions
from fedwcm.api.training import Result, run
from fedwcm.api.trained import load, normalizer

__all__ = [
    "Comparison",
    "Division",
    "Result",
    "compare",
    "evaluate",
    "load",
    "normalizer",
    "partition",
    "partitions",
    "run",
]
