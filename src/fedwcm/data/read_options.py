"""What a user may say about how a source is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from fedwcm.core.checks import require, require_allowed
from fedwcm.core.ranges import Inside
from fedwcm.data.schema import DatasetSchema, Encoding

Impute = Literal["median"]
Unlabelled = Literal["skip"]

COLUMNS = ("label", "client", "group", "split", "id", "features", "drop", "impute", "unlabelled")
READING = (*COLUMNS, "encoding", "delimiter")
"""Options of the columns of a table, and of a text file that holds one."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a source is read; see `load_dataset` for what each option means.

    `schema` is that of a trained model, to which the samples are matched. Without labels (`labelled` false) none
    are looked for. `whole` leaves the rows of a table together, whatever part they belong to. `client_ids` are the
    clients of the training samples where the source does not name them. `id` is the column that names each row.
    """

    label: str | None = None
    client: str | None = None
    group: str | None = None
    split: str | None = None
    id: str | None = None
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    impute: Impute | None = None
    encoding: str | None = None
    delimiter: str | None = None
    unlabelled: Unlabelled | None = None
    image_size: int | None = None
    test_fraction: Inside = 0.2
    test_clients: float | Sequence[object] | None = None
    client_ids: NDArray[Any] | None = None
    seed: int = 0
    schema: DatasetSchema | None = None
    labelled: bool = True
    whole: bool = False

    def __post_init__(self) -> None:
        require_allowed(self)
        share = self.test_clients
        require(
            not isinstance(share, float) or 0 < share < 1,
            "test_clients",
            share,
            "a share of the clients above 0 and below 1, or their names (one called 3 as '3,')",
        )
        require(self.impute in (None, "median"), "impute", self.impute, "'median' or none")
        require(self.unlabelled in (None, "skip"), "unlabelled", self.unlabelled, "'skip' or none")
        mark = self.delimiter
        require(mark is None or mark == "tab" or len(mark) == 1, "delimiter", mark, "one character, tab, or none")
        size = self.image_size
        require(size is None or 1 <= size <= 8192, "image_size", size, "a whole number from 1 to 8192, or none")
        for option in ("features", "drop"):
            names = getattr(self, option)
            require(not isinstance(names, str), option, names, "a list of names or patterns")
        if self.encoding is not None:
            _require_text_encoding(self.encoding)

    @property
    def known(self) -> Encoding | None:
        """The encoding that samples must have, if a schema is given."""
        return None if self.schema is None else self.schema.encoding

    @property
    def label_column(self) -> str | None:
        """The label's column: the one that is named, else the schema's."""
        return self.label if self.label is not None or self.known is None else self.known.label

    def client_among(self, columns: Sequence[str]) -> str | None:
        """Return the client's column: the one that is named, else the schema's where labelled rows have it."""
        if self.client is not None or self.known is None or not self.labelled:
            return self.client
        return self.known.client if self.known.client in columns and self.known.client not in self.drop else None

    @property
    def text_columns(self) -> frozenset[str]:
        """The columns that hold text, as a schema tells; their values in a new file may look like others."""
        if self.schema is None:
            return frozenset()
        names = {column.name for column in self.schema.encoding.columns if column.kind == "category"}
        if self.label_column is not None and self.schema.has_text_classes:
            names.add(self.label_column)
        return frozenset(names)

    @property
    def name_columns(self) -> frozenset[str]:
        """The columns whose values are names: of clients, groups, rows and, if no schema knows them, classes."""
        label, client = (self.label, None) if self.known is None else (None, self.known.client)
        names = (label, client, self.client, self.group, self.id)
        return frozenset(name for name in names if name is not None)

    @property
    def size(self) -> int | None:
        """The side to bring images to: the schema's, if there is one."""
        return self.image_size if self.known is None else self.known.image_size

    def refuse(self, source: str, kind: str, allowed: tuple[str, ...]) -> None:
        """Refuse options that this kind of source does not have."""
        defaults = ReadOptions()
        for option in (*READING, "image_size"):
            value = getattr(self, option)
            if value != getattr(defaults, option) and option not in allowed:
                shown = ",".join(value) if isinstance(value, tuple) else value
                flag = option.replace("_", "-")
                has = f"it has {', '.join(allowed)}" if allowed else "it has no such options"
                raise ValueError(f"--{flag} {shown} ({option}={value!r}) is not for {kind}, as {source} is: {has}")

    def refuse_test_fraction(self, source: str) -> None:
        """Refuse another test fraction than the default for data with a test part."""
        allowed = f"left at {ReadOptions.test_fraction}: {source} has a test part of its own"
        require(self.test_fraction == ReadOptions.test_fraction, "test_fraction", self.test_fraction, allowed)


def _require_text_encoding(name: str) -> None:
    try:
        b" ".decode(name)
    except UnicodeError:
        return  # an encoding, of which a single byte is no text
    except (LookupError, ValueError):
        raise ValueError(
            f"encoding = {name!r} is not allowed: it must be a text encoding of Python, such as utf-8, latin-1, "
            "cp1252 or utf-16"
        ) from None
