"""The cropped digits of SVHN: two MATLAB files with images `X` and labels `y`."""

from pathlib import Path

import numpy as np

from fedwcm.data.formats.mat import read_mat
from fedwcm.data.samples import Parts, Samples

TRAIN_FILE = "train_32x32.mat"
TEST_FILE = "test_32x32.mat"


def read_svhn(folder: Path) -> Parts:
    """Read train and test; the files write digit 0 as label 10."""
    return Parts(_read_mat(folder / TRAIN_FILE), _read_mat(folder / TEST_FILE))


def _read_mat(path: Path) -> Samples:
    content = read_mat(path, ("X", "y"))
    images, labels = content["X"], content["y"].reshape(-1)
    if images.ndim != 4 or images.dtype != np.uint8:
        raise ValueError(f"{path}: X is {images.dtype} of shape {images.shape}, not images of 8 bits")
    wrong = np.flatnonzero(~np.isin(labels, np.arange(11)))
    if len(wrong):
        raise ValueError(f"{path}: y[{wrong[0]}] is {labels[wrong[0]]}: labels are whole numbers from 0 to 10")
    return Samples(np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels.astype(np.int64) % 10)
