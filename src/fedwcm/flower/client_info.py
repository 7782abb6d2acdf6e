"""How a client introduces itself to the server: its number, and the form of its data, never the data."""

from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedwcm.flower.checks import UnusableError


@dataclass(frozen=True)
class ClientInfo:
    """Who a client is, how many samples it has, and what its model makes of them."""

    client: int
    samples: int
    classes: int
    input_shape: tuple[int, ...]
    input_dtype: str

    def records(self) -> RecordDict:
        """For a message."""
        return RecordDict({"hello": ConfigRecord({**asdict(self), "input_shape": list(self.input_shape)})})

    @classmethod
    def read(cls, content: RecordDict) -> "ClientInfo":
        """From a message; what cannot be read is refused."""
        try:
            facts: dict[str, Any] = dict(content.config_records["hello"])
            return cls(**{**facts, "input_shape": tuple(facts["input_shape"])})
        except (KeyError, TypeError) as error:
            raise UnusableError(f"its introduction cannot be read ({error!r})") from None

    def require_same_task(self, other: "ClientInfo") -> None:
        """Refuse a client whose model tells other classes apart than the model of the first."""
        if self.classes != other.classes:
            raise UnusableError(f"its model has {self.classes} classes, others have {other.classes}")
