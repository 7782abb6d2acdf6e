"""The noisy counts that a client claims to have, drawn once and kept on the node.

Other noise for the same counts would tell more about them: the mean of many draws is exact. So a client claims the
same counts as long as its own do not change, in all runs if the node has a `state-dir`, else in one.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context

from fedwcm.core.types import Ints
from fedwcm.privacy.noise import claimed_counts
from fedwcm.runs.files import replace_file

CLAIM = "fedwcm-claimed-counts"


def kept_claim(counts: Ints, epsilon: float, client: int, context: Context) -> Ints:
    """Return the counts that this client claims, with noise that nobody can predict."""
    kept = _read(client, context)
    if kept.get("counts") == counts.tolist() and kept.get("epsilon") == epsilon:
        return np.array(kept["claimed"], dtype=np.int64)
    claimed = claimed_counts(counts, epsilon, np.random.default_rng())
    _write(client, context, {"counts": counts.tolist(), "epsilon": epsilon, "claimed": claimed.tolist()})
    return claimed


def _read(client: int, context: Context) -> dict[str, Any]:
    path = _path(client, context)
    if path is not None:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return dict(context.state.config_records[CLAIM]) if CLAIM in context.state else {}


def _write(client: int, context: Context, claim: dict[str, Any]) -> None:
    path = _path(client, context)
    if path is None:
        context.state[CLAIM] = ConfigRecord(claim)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(claim) + "\n")


def _path(client: int, context: Context) -> Path | None:
    folder = context.node_config.get("state-dir")
    return Path(str(folder)) / f"client-{client}-claimed-counts.json" if folder else None
