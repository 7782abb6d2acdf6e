"""The noisy counts that a client claims to have, drawn once and kept on the node.

Fresh noise for the same counts would reveal more about them: the mean of many draws is exact. So a client claims
the same counts whenever its own and ε are the same, in all runs if the node has a `state-dir`, else in one.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Context

from fedwcm.core.types import Ints
from fedwcm.privacy.noise import noisy_counts
from fedwcm.runs.files import write_json

CLAIM = "claimed-counts"


def stored_noisy_counts(counts: Ints, epsilon: float, client: int, context: Context) -> Ints:
    """Return the counts that this client claims, with noise that nobody can predict."""
    kept = _place(counts, epsilon, client, context)
    if (claimed := kept.read()) is None:
        claimed = noisy_counts(counts, epsilon, np.random.default_rng()).tolist()
        kept.write(claimed)
    return np.array(claimed, dtype=np.int64)


@dataclass(frozen=True)
class _InFolder:
    """A file of the node, for all runs."""

    path: Path

    def read(self) -> list[int] | None:
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else None

    def write(self, claimed: list[int]) -> None:
        write_json(self.path, claimed, indent=None)


@dataclass(frozen=True)
class _InContext:
    """A record in Flower's context, for one run."""

    context: Context
    name: str

    def read(self) -> list[int] | None:
        if self.name not in self.context.state:
            return None
        return cast(list[int], self.context.state.config_records[self.name]["claimed"])

    def write(self, claimed: list[int]) -> None:
        self.context.state[self.name] = ConfigRecord({"claimed": claimed})


def _place(counts: Ints, epsilon: float, client: int, context: Context) -> _InFolder | _InContext:
    """Where the claim for these counts and this ε is: runs that share a folder must not replace each other's."""
    what = json.dumps([counts.tolist(), epsilon]).encode()
    name = f"{CLAIM}-{hashlib.sha256(what).hexdigest()[:16]}"
    folder = context.node_config.get("state-dir")
    if not folder:
        return _InContext(context, name)
    return _InFolder(Path(str(folder)) / f"client-{client}-{name}.json")
