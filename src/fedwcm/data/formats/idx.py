"""The IDX format of MNIST and Fashion-MNIST: a short header, then raw bytes; often gzipped."""

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.formats.safety import open_maybe_gzip
from fedwcm.data.samples import Parts, Samples

UINT8_CODE = 0x08

TRAIN_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST_FILES = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def read_idx_folder(folder: Path) -> Parts:
    """Read the four files of an MNIST-like dataset, each plain or with `.gz`."""
    train, test = (
        Samples(
            x=read_idx(_plain_or_gz(folder / images))[..., np.newaxis],
            y=read_idx(_plain_or_gz(folder / labels)),
        )
        for images, labels in (TRAIN_FILES, TEST_FILES)
    )
    return Parts(train, test)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes."""
    with open_maybe_gzip(path) as stream:
        data = stream.read()
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UINT8_CODE:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes: it begins with {data[:4].hex()}")
    dims = data[3]
    header = 4 + 4 * dims
    if len(data) < header:
        raise ValueError(f"{path} ends inside its header")
    shape = struct.unpack(f">{dims}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise ValueError(f"{path} holds {len(data) - header} bytes, which does not fit its shape {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape).copy()


def _plain_or_gz(path: Path) -> Path:
    return path if path.exists() else path.with_name(path.name + ".gz")
