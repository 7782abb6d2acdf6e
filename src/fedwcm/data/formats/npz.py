"""NumPy's `.npz` files."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.hint import did_you_mean
from fedwcm.data.samples import Parts, Samples

SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
WHOLE_KEYS = ("x", "y")


def read_npz(path: Path) -> Parts:
    """Read `x_train`, `y_train`, `x_test`, `y_test`, or `x` and `y` from which a test part is drawn.

    Optional: `classes` (names; integer labels are then positions in it), and who holds each training
    sample as `client_train` (beside `x_train`) or `client` (beside `x`).
    """
    arrays = _read_arrays(path)
    is_split = any(key in arrays for key in SPLIT_KEYS)
    required, client = (SPLIT_KEYS, "client_train") if is_split else (WHOLE_KEYS, "client")
    _check_keys(path, arrays, required, (client, "classes"))
    names = arrays.get("classes")
    classes = None if names is None else tuple(str(name) for name in names)
    if is_split:
        train = Samples(arrays["x_train"], arrays["y_train"], arrays.get(client))
        return Parts(train, Samples(arrays["x_test"], arrays["y_test"]), classes)
    return Parts(Samples(arrays["x"], arrays["y"], arrays.get(client)), classes=classes)


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz file")
    try:
        with np.load(path, allow_pickle=False) as content:
            return {key: content[key] for key in content.files}
    except ValueError as error:
        raise ValueError(f"{path}: {error} (arrays of Python objects are not read)") from error


def _check_keys(
    path: Path, arrays: dict[str, NDArray[Any]], required: tuple[str, ...], optional: tuple[str, ...]
) -> None:
    missing = [key for key in required if key not in arrays]
    if missing:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}: it must hold {', '.join(SPLIT_KEYS)}, "
            f"or {' and '.join(WHOLE_KEYS)}; it holds {', '.join(arrays) or 'nothing'}"
        )
    known = required + optional
    for key in arrays:
        if key not in known:
            hint = did_you_mean(key, known)
            raise ValueError(f"{path}: unknown array {key!r}{hint}; known are {', '.join(known)}")
