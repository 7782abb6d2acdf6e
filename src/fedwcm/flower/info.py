"""What a client tells the server about itself: its number and the shape of its data, never the data."""

from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import prod
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict

from fedwcm.engine.network import Network
from fedwcm.flower import untrusted
from fedwcm.flower.app.model import architecture, class_scores, fingerprint, frozen_parts
from fedwcm.flower.untrusted import UnusableError, short_repr

DTYPES = ("float32", "int64", "int32", "int16", "int8", "uint8", "bool")
LARGEST_INPUT = 2**22
"""Most numbers in one input for which the server tries its model: the shape is only a client's claim."""
LARGEST_NUMBER = 2**31
SAME_FROZEN = 1e-4
"""Difference of two fingerprints, as a share of the norm, up to which parameters count as the same."""


@dataclass(frozen=True)
class ClientInfo:
    """A client's number, its number of samples, the shape of its inputs and outputs, its model and its package."""

    client: int
    samples: int
    classes: int
    input_shape: tuple[int, ...]
    input_dtype: str
    model: tuple[str, ...]
    version: str
    frozen: tuple[float, ...] = ()
    """Fingerprints of the parameters that are not trained, in the model's order."""

    @property
    def inputs(self) -> tuple[tuple[int, ...], str]:
        """The shape and the type of an input."""
        return self.input_shape, self.input_dtype

    def records(self) -> RecordDict:
        """Return the info as a record."""
        facts: dict[str, Any] = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}
        return RecordDict({"info": ConfigRecord(facts)})


@dataclass(frozen=True, eq=False)
class Admission:
    """What a client must have in common with the server: the package's version, the model, its inputs and classes.

    Args:
        network: the server's model.
        version: the server's version of this package.
        max_samples: largest number of samples that a client may claim; 0 if it is that of the others that counts.
        input_shape: the shape of one input in the server's test data; None if it has none.
    """

    network: Network
    version: str
    max_samples: int
    input_shape: tuple[int, ...] | None = None

    def read(self, content: RecordDict) -> ClientInfo:
        """Return a client's info; raises an UnusableError if it is invalid, or does not match the server's."""
        facts = untrusted.read_record(content, "info")
        untrusted.require_names("info", facts, ClientInfo.__dataclass_fields__)
        if untrusted.read_str(facts, "version") != self.version:
            raise UnusableError(f"it has fedwcm {short_repr(facts['version'])}, the server has {self.version!r}")
        self._require_same_model(untrusted.read_list(facts, "model"))
        self._require_same_frozen(untrusted.read_list(facts, "frozen"))
        shape = [
            untrusted.read_int({"input_shape": size}, "input_shape", 0, LARGEST_NUMBER)
            for size in untrusted.read_list(facts, "input_shape")
        ]
        info = ClientInfo(
            client=untrusted.read_int(facts, "client", 0, LARGEST_NUMBER),
            samples=untrusted.read_int(facts, "samples", 1, self.max_samples or LARGEST_NUMBER),
            classes=untrusted.read_int(facts, "classes", 1, LARGEST_NUMBER),
            input_shape=tuple(shape),
            input_dtype=untrusted.read_str(facts, "input_dtype"),
            model=(),
            version=self.version,
        )
        self._require_possible_inputs(info)
        self._require_same_classes(info)
        return info

    def require_inputs_of(self, info: ClientInfo, usual: ClientInfo) -> None:
        """Raise an UnusableError unless a client's inputs are those of most, or of the server's test data."""
        if self.input_shape is None and info.inputs != usual.inputs:
            own, others = short_repr(info.inputs), short_repr(usual.inputs)
            raise UnusableError(f"its inputs are {own}, those of most clients {others}")

    def _require_same_model(self, theirs: list[object]) -> None:
        for own, other in zip_longest(architecture(self.network), theirs):
            if own != other:
                raise UnusableError(
                    f"its model differs from the server's: {short_repr(other)} instead of {short_repr(own)}"
                )

    def _require_same_frozen(self, theirs: list[object]) -> None:
        own = frozen_parts(self.network)
        if len(theirs) != len(own):
            raise UnusableError(f"its model has {len(theirs)} frozen parameters, the server's has {len(own)}")
        for (name, entries), other in zip(own.items(), theirs, strict=True):
            difference = abs(fingerprint(entries) - untrusted.read_float({"frozen": other}, "frozen"))
            if difference > SAME_FROZEN * float(entries.norm()):
                raise UnusableError(
                    f"its frozen parameter {name!r} differs from the server's: what is not trained is never sent, "
                    "so the model functions of server and clients must give it the same values"
                )

    def _require_possible_inputs(self, info: ClientInfo) -> None:
        """Compare the client's inputs with the server's test data; without any, their size must be moderate."""
        shape, dtype, known = info.input_shape, info.input_dtype, self.input_shape
        if known is not None and shape != known:
            what = f"those of the server's test data {short_repr(known)}"
            raise UnusableError(f"its inputs have shape {short_repr(shape)}, {what}")
        if dtype not in DTYPES or (known is None and prod(shape) > LARGEST_INPUT):
            allowed = f"one of {', '.join(DTYPES)}, and at most {LARGEST_INPUT:,} numbers"
            raise UnusableError(
                f"its inputs are {short_repr(dtype)} of shape {short_repr(shape)}: they must be {allowed}"
            )

    def _require_same_classes(self, info: ClientInfo) -> None:
        """Try the server's model on an input of the client's shape."""
        try:
            dtype = getattr(torch, info.input_dtype)
            zeros = torch.zeros(1, *info.input_shape, dtype=dtype, device=self.network.device)
            classes = class_scores(self.network, zeros).shape[-1]
        except Exception as error:  # whatever a model raises about an input of another shape
            reason = f"the server's model does not take inputs of shape {short_repr(info.input_shape)}"
            raise UnusableError(f"{reason} ({type(error).__name__})") from None
        if info.classes != classes:
            raise UnusableError(f"its model has {info.classes} classes, the server's has {classes}")
