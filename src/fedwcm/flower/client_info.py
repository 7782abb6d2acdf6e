"""What a client tells the server about itself: its number and the form of its data, never the data."""

from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedwcm.flower.checks import UnusableError


@dataclass(frozen=True)
class ClientInfo:
    """A client's number, its number of samples, and the shape of its inputs and outputs."""

    client: int
    samples: int
    classes: int
    input_shape: tuple[int, ...]
    input_dtype: str

    def records(self) -> RecordDict:
        """The info as a record."""
        return RecordDict({"info": ConfigRecord({**asdict(self), "input_shape": list(self.input_shape)})})

    @classmethod
    def read(cls, content: RecordDict) -> "ClientInfo":
        """Read a record; raises an UnusableError if it cannot be read."""
        try:
            facts: dict[str, Any] = dict(content.config_records["info"])
            return cls(**{**facts, "input_shape": tuple(facts["input_shape"])})
        except (KeyError, TypeError) as error:
            raise UnusableError(f"its info cannot be read ({error!r})") from None

    def require_same_task(self, other: "ClientInfo") -> None:
        """Refuse a client whose model has another number of classes than the first client's."""
        if self.classes != other.classes:
            raise UnusableError(f"its model has {self.classes} classes, others have {other.classes}")
