"""Data: loading, long tails and the division among clients."""

from fedwcm.data.dataset import Dataset
from fedwcm.data.load import load_dataset
from fedwcm.data.named import DATASETS, NamedDataset
from fedwcm.data.split import stratified_split

__all__ = ["DATASETS", "Dataset", "NamedDataset", "load_dataset", "stratified_split"]
