"""The privacy that a node demands before it reveals anything: the run's own options come from the server."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict

from fedwcm.config.schema import Config
from fedwcm.core.checks import require
from fedwcm.core.types import Ints
from fedwcm.flower.client.state import NodeFile
from fedwcm.flower.records import shares_metrics
from fedwcm.privacy.options import PrivacyOptions, noisy_counts
from fedwcm.teacher import TEACHER_FILE, Taught, file_of
from fedwcm.utils.json_record import is_number


def require_private_enough(run: PrivacyOptions, node_config: Mapping[str, Any]) -> None:
    """Raise ValueError if the run protects this node's counts less than the node's config demands."""
    mode, least, levels, epsilon = (node_config.get(key) for key in DEMANDS)
    require(mode in (None, "none", "he"), "privacy", mode, "'none' or 'he'")
    require(least is None or (_whole(least) and least >= 2), "min-contributors", least, "a whole number from 2")
    require(levels is None or (_whole(levels) and levels >= 1), "score-levels", levels, "a whole number from 1")
    require(epsilon is None or (is_number(epsilon) and epsilon > 0), "epsilon", epsilon, "a positive number")
    encrypted = run.mode == "he"
    met = {
        "privacy": ("mode", mode != "he" or encrypted),
        "min-contributors": ("min_contributors", least is None or (encrypted and run.min_contributors >= least)),
        "score-levels": ("score_levels", levels is None or (run.levels is not None and run.levels <= levels)),
        "epsilon": ("epsilon", epsilon is None or (run.epsilon is not None and run.epsilon <= epsilon)),
    }
    for demand, (option, enough) in met.items():
        if not enough:
            has = " and ".join(
                f"privacy.{name} = {getattr(run, name)!r}" for name in dict.fromkeys((option, "mode"))
            )
            raise ValueError(f"this node demands {demand} = {node_config[demand]!r}: the run has {has}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


DEMANDS = ("privacy", "min-contributors", "score-levels", "epsilon")
"""Keys of a node's config that demand protection of a run."""


def withholds_metrics(content: RecordDict, run: PrivacyOptions, node_config: Mapping[str, Any]) -> bool:
    """Return whether a client keeps its loss and accuracy to itself: its node has the last word."""
    own = node_config.get("share-metrics")
    require(own in (None, True, False), "share-metrics", own, "true or false")
    demanding = node_config.get("privacy") == "he" or any(key in node_config for key in DEMANDS[1:])
    return not (own if own is not None else shares_metrics(content, run) and not demanding)


PINNED, COUNTS = "fedwcm-pinned", "fedwcm-counts"


def pin(context: Context, what: str, value: str) -> None:
    """Keep what a run's messages say first; raises ValueError if another one says something else.

    A client's score follows from its counts, the options, the class distribution of all and the target: a server
    that could change these from message to message would learn the counts from several scores.
    """
    pinned = dict(context.state.config_records.get(PINNED, ConfigRecord()))
    if pinned.setdefault(what, value) != value:
        raise ValueError(f"the {what} of this run is not that of earlier messages: this client does not answer")
    context.state[PINNED] = ConfigRecord(pinned)


def keep_counts(counts: Ints, context: Context) -> None:
    """Keep class counts in Flower's context, on the node, so that later messages need not read the data."""
    context.state[COUNTS] = ConfigRecord({"counts": counts.tolist()})


def kept_counts(context: Context) -> Ints | None:
    """Return the counts that were kept; None if there are none."""
    kept = context.state.config_records.get(COUNTS)
    return None if kept is None else np.array(kept["counts"], dtype=np.int64)


def stored_noisy_counts(counts: Ints, epsilon: float, client: int, context: Context) -> Ints:
    """Return this client's noisy counts, drawn once for the same counts and ε: the mean of many draws is exact.

    They are stored in the node's `state-dir` for all runs, readable by its owner only, else in Flower's context
    for one run. Draws with different ε add up: all those for the same counts spend no more than the node allows.
    """
    file = NodeFile(context, f"client-{client}-noisy-counts.json")
    draws: list[dict[str, Any]] = json.loads(file.read() or "[]")
    spent = {draw["epsilon"]: draw["noisy"] for draw in draws if draw["counts"] == counts.tolist()}
    if epsilon in spent:
        return np.array(spent[epsilon], dtype=np.int64)
    allowed, total = context.node_config.get("epsilon"), sum(spent) + epsilon
    if isinstance(allowed, int | float) and total > allowed * (1 + 1e-9):
        raise ValueError(
            f"this node allows epsilon = {allowed} for its counts in all: privacy.epsilon = {epsilon} "
            f"would make it {total:g}"
        )
    noisy = noisy_counts(counts, epsilon, np.random.default_rng())
    draws.append({"counts": counts.tolist(), "epsilon": epsilon, "noisy": noisy.tolist()})
    file.write(json.dumps(draws).encode())
    return noisy


def require_allowed_code(config: Config, node_config: Mapping[str, Any]) -> None:
    """Raise ValueError if the run names code to import that the node's config does not list as `allow-code`."""
    allowed = [name.strip() for name in str(node_config.get("allow-code", "")).split(",")]
    for kind in ("method", "loss", "sampler"):
        name = getattr(config, kind).name
        if ":" in name and name not in allowed:
            raise ValueError(f"{kind}.name = {name!r} is code that this node does not allow: see allow-code")


def require_allowed_teacher(components: Iterable[object], node_config: Mapping[str, Any]) -> None:
    """Raise ValueError if the run names a teacher's file that the node's config does not name as `teacher`."""
    allowed = (TEACHER_FILE, str(node_config.get("teacher", TEACHER_FILE)))
    for taught in components:
        if isinstance(taught, Taught) and taught.uses_teacher and file_of(taught.teacher) not in allowed:
            raise ValueError(f"teacher = {taught.teacher!r} is no file that this node allows: set its own teacher")


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
