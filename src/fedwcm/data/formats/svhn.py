"""The cropped digits of SVHN: two MATLAB files with images `X` and labels `y`."""

from pathlib import Path

import numpy as np

from fedwcm.data.samples import Parts, Samples

TRAIN_FILE = "train_32x32.mat"
TEST_FILE = "test_32x32.mat"


def read_svhn(folder: Path) -> Parts:
    """Read train and test; the files write digit 0 as label 10."""
    return Parts(_read_mat(folder / TRAIN_FILE), _read_mat(folder / TEST_FILE))


def _read_mat(path: Path) -> Samples:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(str(path), variable_names=["X", "y"])
    except (MatReadError, ValueError, TypeError, NotImplementedError) as error:
        raise ValueError(f"{path} is not a MATLAB file that can be read: {error}") from error
    images = np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2))
    return Samples(images, content["y"].reshape(-1).astype(np.int64) % 10)
