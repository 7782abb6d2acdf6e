"""The one rule for train, validation and test parts, whatever the source.

The part called `train` is trained on, the one called `test` is tested on, the one called `val` is for validation
and never becomes the test. Where there is no test part, one is drawn from `train`. Where nothing is called by
these names, everything is `train`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARTS = ("train", "val", "test")
ALIASES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""What the parts are called in folders, columns and sets of the hub, in capitals or not."""


def part_of(name: str) -> str | None:
    """The part that goes by this name; None if none does."""
    return ALIASES.get(name.strip().lower())


def named_parts(where: str, names: Iterable[str]) -> dict[str, str]:
    """Which of the names stands for each part; two for one part are an error."""
    found: dict[str, str] = {}
    for name in names:
        part = part_of(name)
        if part in found:
            raise ValueError(f"{where} has two parts for {part!r}, {found[part]!r} and {name!r}: leave one")
        if part is not None:
            found[part] = name
    return found


def part_rows(where: str, column: str, values: NDArray[Any]) -> dict[str, NDArray[np.int64]]:
    """The rows of each part, by a column that names it."""
    names, inverse = np.unique(values.astype(np.str_), return_inverse=True)
    parts = [part_of(str(name)) for name in names]
    if None in parts:
        wrong = parts.index(None)
        row = int(np.flatnonzero(inverse == wrong)[0]) + 1
        raise ValueError(
            f"{where}: column {column!r}, row {row} is {str(names[wrong])!r}: it must be 'train', 'val' or 'test'"
        )
    codes = np.array([PARTS.index(str(part)) for part in parts])[inverse]
    rows = {part: np.flatnonzero(codes == i) for i, part in enumerate(PARTS)}
    return {part: chosen for part, chosen in rows.items() if len(chosen) or part == "train"}
