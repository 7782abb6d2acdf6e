"""Small copies of three image sets, two files each: one to choose on, one to judge on.

    python -m benchmarks.recipe.data --data-dir DIR --cifar100 FILE

DIR is where the named data sets `fashion-mnist` and `cifar10` are looked for first (see docs/data.md), FILE an
.npz with `x_train, y_train, x_test, y_test` of CIFAR-100 or a part of it. Images are halved in size by averaging
2x2 pixels. `NAME-choose.npz` holds no test image: what it calls its test part are training images, 200 of each
class, taken out before the long tail is made. `NAME-judge.npz` has all training images and 300 test images of each
class.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.jobs import CACHE
from fedwcm.core.types import Ints
from fedwcm.data import load_dataset

FOLDER = CACHE / "recipe"
HELD_OUT, TESTED = 200, 300
Images = NDArray[Any]


def halved(images: Images) -> NDArray[np.uint8]:
    """Return images `(n, h, w, channels)` at half the size."""
    n, height, width, channels = images.shape
    blocks = images.reshape(n, height // 2, 2, width // 2, 2, channels)
    return np.rint(blocks.mean(axis=(2, 4), dtype=np.float32)).astype(np.uint8)


def first_of_each_class(labels: Ints, count: int) -> Ints:
    """Return the rows of the first samples of each class."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in np.unique(labels)]))


def write(name: str, x_train: Images, y_train: Ints, x_test: Images, y_test: Ints) -> None:
    """Write the two files of a data set."""
    x_train, x_test = halved(x_train), halved(x_test)
    FOLDER.mkdir(parents=True, exist_ok=True)
    held_out = first_of_each_class(y_train, HELD_OUT)
    rest = np.setdiff1d(np.arange(len(y_train)), held_out)
    if len(rest):
        _save(f"{name}-choose", x_train[rest], y_train[rest], x_train[held_out], y_train[held_out])
    tested = first_of_each_class(y_test, TESTED)
    _save(f"{name}-judge", x_train, y_train, x_test[tested], y_test[tested])


def _save(name: str, x_train: Images, y_train: Ints, x_test: Images, y_test: Ints) -> None:
    np.savez(FOLDER / f"{name}.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data-dir", help="folder to search first for fashion-mnist and cifar10")
    parser.add_argument("--cifar100", type=Path, help=".npz file of CIFAR-100 or a part of it")
    chosen = parser.parse_args()
    for name in ("fashion-mnist", "cifar10"):
        found = load_dataset(name, data_dir=chosen.data_dir)
        write(name, found.x_train, found.y_train, found.x_test, found.y_test)
    if chosen.cifar100:
        with np.load(chosen.cifar100) as arrays:
            write("cifar100", *(arrays[key] for key in ("x_train", "y_train", "x_test", "y_test")))


if __name__ == "__main__":
    main()
