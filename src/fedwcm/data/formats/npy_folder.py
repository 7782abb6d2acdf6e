"""A folder of `.npy` files, whose samples stay on disk: they are mapped into memory, and read when needed."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.formats.npz import array_parts, check_header, check_text
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.samples import Parts

SUFFIX = ".npy"


def is_npy_folder(path: Path) -> bool:
    """Return whether a folder holds `.npy` files."""
    return path.is_dir() and any(path.glob(f"*{SUFFIX}"))


def read_npy_folder(path: Path, options: ReadOptions) -> Parts:
    """Read a folder with a file for each array of a `.npz` file: `x_train.npy`, `y_train.npy`, `x_test.npy`, …

    Inputs are mapped.
    """
    names = {file.stem: file for file in sorted(path.glob(f"*{SUFFIX}"))}
    arrays = {name: _read(file, name.lower().startswith("x")) for name, file in names.items()}
    return array_parts(str(path), arrays, options)


def _read(file: Path, mapped: bool) -> NDArray[Any]:
    with file.open("rb") as content:
        check_header(str(file), content, file.stat().st_size)
    # Not copy on write ("c"): the system refuses such a mapping of a file that is larger than its memory.
    values: NDArray[Any] = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    return check_text(str(file), np.asarray(values))
