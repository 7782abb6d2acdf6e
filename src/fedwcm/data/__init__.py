"""Data: loading, long tails and the division among clients."""

from fedwcm.data.dataset import Dataset
from fedwcm.data.load import load_dataset, load_rows
from fedwcm.data.named import DATASETS, NamedDataset
from fedwcm.data.raw import InferenceRows
from fedwcm.data.schema import Column, DatasetSchema, Encoding
from fedwcm.data.split import stratified_split

__all__ = [
    "DATASETS",
    "Column",
    "Dataset",
    "DatasetSchema",
    "Encoding",
    "InferenceRows",
    "NamedDataset",
    "load_dataset",
    "load_rows",
    "stratified_split",
]
