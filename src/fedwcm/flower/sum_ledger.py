"""Which secure sums the server has asked for, kept in the run's folder.

A server that is killed after a sum, and before its checkpoint, repeats the round, and clients upload what they
uploaded before. The same sum tells nothing new. One without a client would tell that client's upload.
"""

import hashlib
import json
from collections import Counter
from pathlib import Path

from fedwcm.core.types import Floats
from fedwcm.flower.records import RequestId
from fedwcm.flower.secure_sum import SecureSumError
from fedwcm.runs.files import write_json

NAME = "secure-sums.json"


class SumLedger:
    """The sums of each round, in their order, each as a digest of its clients and their weights.

    Args:
        folder: where they are kept; None if the run cannot be continued, so that no round is repeated.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / NAME
        self._sums: dict[str, list[str]] = {}
        self._entered: Counter[str] = Counter()
        if self._path is not None and self._path.exists():
            self._sums = json.loads(self._path.read_text(encoding="utf-8"))

    def enter(self, asked: RequestId, key: str, clients: list[int], weights: Floats) -> None:
        """Note a sum before it is known; raises a SecureSumError if the round had another one in its place."""
        name = f"{asked.round}/{asked.task}/{key}"
        made_of = json.dumps([clients, (weights.round(9) + 0.0).tolist()])  # + 0.0: no minus before a zero
        digest = hashlib.sha256(made_of.encode()).hexdigest()
        kept, place = self._sums.setdefault(name, []), self._entered[name]
        self._entered[name] += 1
        if place < len(kept):
            if kept[place] != digest:
                raise SecureSumError(
                    f"round {asked.round} is repeated, and this sum had other clients or weights before"
                )
            return
        kept.append(digest)
        if self._path is not None:
            write_json(self._path, self._sums)
