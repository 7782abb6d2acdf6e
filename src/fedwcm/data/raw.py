"""What readers make of a source: samples in parts, and the one rule for what parts are called.

The part called `train` is trained on, the one called `test` is tested on, the one called `val` is for validation
and never becomes the test. Where there is no test part, one is drawn from `train`. Where nothing is called by
these names, everything is `train`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.large_arrays import take_rows
from fedwcm.data.schema import Encoding

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


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as a reader found them: features and, where known, labels of any kind, clients, names and groups.

    Samples of a group, such as a patient's, stay on one side of every split.
    """

    x: NDArray[Any]
    y: NDArray[Any] | None = None
    client: NDArray[Any] | None = None
    ids: NDArray[Any] | None = None
    group: NDArray[Any] | None = None

    def take(self, rows: NDArray[Any] | slice) -> "Samples":
        """Return the chosen rows (indices or a slice, which copies nothing)."""
        return self.with_inputs(take_rows(self.x, rows), rows)

    def with_inputs(self, x: NDArray[Any], rows: NDArray[Any] | slice) -> "Samples":
        """Return what is known of the chosen rows with these inputs."""
        others = (None if v is None else v[rows] for v in (self.y, self.client, self.ids, self.group))
        return Samples(x, *others)

    @property
    def labels(self) -> NDArray[Any]:
        """The labels, which must be there."""
        if self.y is None:
            raise ValueError("there are no labels")
        return self.y


@dataclass(frozen=True, eq=False)
class RawSplits:
    """What a reader returns: the `parts` that there are, by name, in the order of `PARTS`.

    Without a part `test`, one is drawn from `train`; a reader that had to know the training rows has `drawn` it:
    the rows of `train` that stay and those that are held out. With `classes`, integer labels are positions in it;
    without, the classes are the sorted unique labels. Arrays that are `owned` by the reader, and by nobody else,
    may be rearranged. `digest` is that of the source; a reader gives it where the samples depend on which of them
    are drawn, as those of a table do.
    """

    parts: Mapping[str, Samples]
    classes: tuple[str, ...] | None = None
    encoding: Encoding = field(default_factory=Encoding)
    owned: bool = False
    digest: str = ""
    drawn: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def train(self) -> Samples:
        """The training part, without rows where the source has none."""
        return self.parts.get("train") or next(iter(self.parts.values())).take(slice(0))

    def with_parts(self, **parts: Samples) -> "RawSplits":
        """Return the same with these parts in place of, or beside, its own."""
        return replace(self, parts={**self.parts, **parts})


@dataclass(frozen=True, eq=False)
class InferenceRows:
    """Samples for a trained model, read by its schema.

    Args:
        name: what the source is called.
        part: which part they are: `test`, or `all`.
        x: the samples, in the form in which the training samples were before they were normalised.
        y: the model's class of each; None where labels were not asked for.
        ids: what the source calls each, such as the path of an image; None where they are the rows of a table.
        clients: who each belongs to, where the source tells.
    """

    name: str
    part: Literal["test", "all"]
    x: NDArray[Any]
    y: NDArray[np.int64] | None
    ids: tuple[str, ...] | None
    clients: NDArray[np.str_] | None = None


def part_of(name: str) -> str | None:
    """Return the part that goes by this name; None if none does."""
    return ALIASES.get(name.strip().lower())


def name_parts(where: str, names: Iterable[str]) -> dict[str, str]:
    """Return which of the names stands for each part; two for one part are an error."""
    parts: dict[str, str] = {}
    for name in names:
        part = part_of(name)
        if part in parts:
            raise ValueError(f"{where} has two parts for {part!r}, {parts[part]!r} and {name!r}: leave one")
        if part is not None:
            parts[part] = name
    return {part: parts[part] for part in PARTS if part in parts}


def part_rows(where: str, column: str, values: NDArray[Any]) -> dict[str, NDArray[np.int64]]:
    """Return the rows of each part, by a column that names it."""
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
