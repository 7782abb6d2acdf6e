"""What a reader finds in a source, and the rows that are read for a trained model."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.large_arrays import taken
from fedwcm.data.part_names import PARTS
from fedwcm.data.schema import Encoding


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
        return self.with_inputs(taken(self.x, rows), rows)

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
class Parts:
    """What a reader returns.

    Without `test`, a test part is drawn from `train`, which may have no rows where the source has no training
    part. With `classes`, integer labels are positions in it; without, the classes are the sorted unique labels.
    Arrays that are `owned` by the reader, and by nobody else, may be rearranged. `digest` is that of the source; a
    reader gives it where the samples depend on which of them are drawn for the test part, as those of a table do.
    """

    train: Samples
    test: Samples | None = None
    classes: tuple[str, ...] | None = None
    val: Samples | None = None
    encoding: Encoding = field(default_factory=Encoding)
    owned: bool = False
    digest: str = ""

    def present(self) -> dict[str, Samples]:
        """The parts that there are, by name."""
        parts = {part: getattr(self, part) for part in PARTS}
        return {part: samples for part, samples in parts.items() if samples is not None}


@dataclass(frozen=True, eq=False)
class Rows:
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
