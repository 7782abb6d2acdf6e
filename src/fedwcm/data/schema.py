"""What inputs and classes mean: kept with a trained model, so that other data is read as the training data was."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from fedwcm.utils.json_record import read_dataclass

ColumnKind = Literal["number", "category", "vector"]


@dataclass(frozen=True)
class Column:
    """A column of a table, and what inputs are made of it.

    A number is one input. A category is one input for each of `categories`: 1 for the value's own, 0 for the
    others, and 0 for all if the value is none of them. A vector is `length` inputs. `fill` stands in for missing
    values; where it is None they are refused.
    """

    name: str
    kind: ColumnKind = "number"
    categories: tuple[str, ...] = ()
    length: int = 1
    fill: float | str | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the inputs: `age`, `colour=red`, `spectrum[0]`."""
        if self.kind == "category":
            return tuple(f"{self.name}={category}" for category in self.categories)
        if self.kind == "vector":
            return tuple(f"{self.name}[{i}]" for i in range(self.length))
        return (self.name,)


@dataclass(frozen=True)
class Encoding:
    """How samples are made from what a source holds.

    Args:
        columns: the columns of a table, in the order of the inputs.
        image: the column that holds images, instead.
        label: the column of the label.
        client: the column of the clients; a labelled table that has it too is read with its clients.
        ignored: columns of the training table that are not inputs: they may be absent from other tables.
        image_size: the side of the square that images are brought to; None for images as they are.
    """

    columns: tuple[Column, ...] = ()
    image: str | None = None
    label: str | None = None
    client: str | None = None
    ignored: tuple[str, ...] = ()
    image_size: int | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.feature_names)


@dataclass(frozen=True)
class DatasetSchema:
    """What it takes to read other data for a model that was trained on this one.

    Args:
        classes: the names of the classes, in the order of the model's scores.
        input_shape: the shape of a sample as the model takes it.
        dtype: the type of the samples in memory, `uint8` for ordinary images.
        encoding: how samples are made from what a source holds.
    """

    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    dtype: str
    encoding: Encoding = field(default_factory=Encoding)

    @property
    def has_text_classes(self) -> bool:
        """Whether the labels were text for certain: some class is neither a whole number nor a truth value."""
        return not all(is_whole_number(name) or name in ("False", "True") for name in self.classes)

    def to_json(self) -> dict[str, Any]:
        """Return the schema as plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: object) -> Self:
        """Return the schema that these values hold; ValueError if they are not those of a schema."""
        return read_dataclass(cls, record, "the schema of a data set")


def is_whole_number(text: str) -> bool:
    """Return whether this is how an integer is written: `1`, not `01`."""
    digits = text.removeprefix("-")
    return len(digits) < 1000 and digits.isascii() and digits.isdigit() and str(int(text)) == text
