"""The privacy that a node demands before it reveals anything: the run's own options come from the server."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context

from fedwcm.core.checks import require
from fedwcm.core.types import Ints
from fedwcm.privacy.noise import noisy_counts
from fedwcm.privacy.options import PrivacyOptions
from fedwcm.runs.files import write_json
from fedwcm.utils.json_record import is_number


def require_private_enough(run: PrivacyOptions, node_config: Mapping[str, Any]) -> None:
    """Raise ValueError if the run protects this node's counts less than the node's config demands."""
    mode, least, levels = (node_config.get(key) for key in ("privacy", "min-contributors", "score-levels"))
    require(mode in (None, "none", "he"), "privacy", mode, "'none' or 'he'")
    if mode == "he":
        _demand(run.mode == "he", "privacy = 'he'", "mode", run.mode)
    if least is not None:
        require(_whole(least) and least >= 2, "min-contributors", least, "a whole number from 2")
        enough = run.mode == "he" and run.min_contributors >= least
        _demand(enough, f"min-contributors = {least}", "min_contributors", run.min_contributors, run.mode)
    if levels is not None:
        require(_whole(levels) and levels >= 1, "score-levels", levels, "a whole number from 1")
        few = run.levels is not None and run.levels <= levels
        _demand(few, f"score-levels = {levels}", "score_levels", run.score_levels, run.mode)
    _require_noise(run.epsilon, node_config.get("epsilon"))


def _require_noise(run: float | None, largest: Any) -> None:
    if largest is None:
        return
    require(is_number(largest) and largest > 0, "epsilon", largest, "a positive number")
    _demand(run is not None and run <= largest, f"epsilon = {largest}", "epsilon", run)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _demand(met: bool, demand: str, option: str, value: object, mode: str | None = None) -> None:
    if not met:
        where = "" if mode is None else f" and privacy.mode = {mode!r}"
        raise ValueError(f"this node demands {demand}: the run has privacy.{option} = {value!r}{where}")


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


KEY = "fedwcm-key-holder"


def reply(request: bytes, client: int, counts: Ints, min_contributors: int, context: Context) -> bytes:
    """Answer one message of the protocol of `fedwcm.privacy`.

    A key that waits for its sum is kept in Flower's context: it never leaves the node, and is deleted once it is
    used or the SuperNode stops.
    """
    from fedwcm.privacy import Client, KeyHolder

    name, holder = str(client), None
    if KEY in context.state:
        kept = context.state.config_records.pop(KEY)
        holder = KeyHolder.from_secret_bytes(name, cast(bytes, kept["secret"]))
    participant = Client(name, counts, min_contributors=min_contributors, key_holder=holder)
    answer = participant.answer(request)
    if participant.key_holder is not None:
        context.state[KEY] = ConfigRecord({"secret": participant.key_holder.secret_bytes()})
    return answer
