"""The privacy that a node demands before it reveals anything: the run's own options come from the server."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict

from fedwcm.config.schema import Config
from fedwcm.core.checks import require
from fedwcm.core.types import Ints
from fedwcm.experiment.files import replacing
from fedwcm.flower.records import shares_metrics
from fedwcm.privacy.options import PrivacyOptions, noisy_counts
from fedwcm.teacher import TEACHER_FILE, Taught, file_of
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


STORED = "noisy-counts"


def stored_noisy_counts(counts: Ints, epsilon: float, client: int, context: Context) -> Ints:
    """Return this client's noisy counts, drawn once for the same counts and ε: the mean of many draws is exact.

    They are stored in the node's `state-dir` for all runs, readable by its owner only, else in Flower's context
    for one run. Draws with different ε add up: all those for the same counts spend no more than the node allows.
    """
    folder = context.node_config.get("state-dir")
    path = Path(str(folder)) / f"client-{client}-{STORED}.json" if folder else None
    draws = _read_draws(path, context)
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
    if path is None:
        context.state[STORED] = ConfigRecord({"draws": json.dumps(draws)})
    else:
        with replacing(path, 0o600) as draft:
            draft.write_text(json.dumps(draws), encoding="utf-8")
    return noisy


def _read_draws(path: Path | None, context: Context) -> list[dict[str, Any]]:
    if path is None:
        kept = context.state.config_records.get(STORED)
        return [] if kept is None else list(json.loads(str(kept["draws"])))
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


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
