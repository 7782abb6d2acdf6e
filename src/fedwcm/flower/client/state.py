"""A client's own state (control variates, duals, …), kept on the client between rounds.

A client that trains cannot know whether its answer will be used: it may arrive too late, or the server may be
killed before it has saved the round. So it keeps its state after the last round *and* the one that it started
from, and the server says with each request which round of this client it last used. Both sides then always agree,
and a round that is repeated after a crash starts from the same state as the first time.
"""

import logging
import re
from pathlib import Path
from typing import Protocol

import torch
from flwr.app import Context
from safetensors.torch import load_file, save_file

from fedwcm.core.checks import require
from fedwcm.core.types import State
from fedwcm.experiment.files import replacing
from fedwcm.flower.records import RequestId, to_arrays, to_tensors

LOG = logging.getLogger("flwr.fedwcm")

RUN_ID = re.compile(r"[0-9A-Za-z]{1,64}")
"""A run's name is part of the name of a file, and comes from the server."""

StatesByRound = dict[int, State]
"""States by the round after which the client had them."""


class StateKeeper(Protocol):
    """Where a client keeps its states."""

    def read(self, device: torch.device) -> StatesByRound: ...

    def write(self, kept: StatesByRound) -> None: ...


class FolderState:
    """One file per client and run in a folder of the node, which survives restarts."""

    def __init__(self, folder: Path, request: RequestId) -> None:
        self._path = folder / f"client-{request.client}-{request.run_id}.safetensors"

    def read(self, device: torch.device) -> StatesByRound:
        if not self._path.exists():
            return {}
        return _nest({key: value.to(device) for key, value in load_file(self._path).items()})

    def write(self, kept: StatesByRound) -> None:
        with replacing(self._path, 0o600) as draft:  # what a client learned from its data concerns nobody else
            save_file({key: value.cpu().contiguous() for key, value in _flat(kept).items()}, draft)


class ContextState:
    """Flower's state of a node in a run, lost when the SuperNode stops or the run ends."""

    def __init__(self, context: Context, request: RequestId) -> None:
        self._context, self._name = context, f"fedwcm-{request.run_id}"

    def read(self, device: torch.device) -> StatesByRound:
        if self._name not in self._context.state:
            return {}
        return _nest(to_tensors(self._context.state.array_records[self._name], device))

    def write(self, kept: StatesByRound) -> None:
        self._context.state[self._name] = to_arrays(_flat(kept))


def state_keeper(context: Context, request: RequestId) -> StateKeeper:
    """Return the folder that the node's config names as `state-dir`, else Flower's context."""
    require(RUN_ID.fullmatch(request.run_id) is not None, "run_id", request.run_id, "1 to 64 letters and digits")
    folder = context.node_config.get("state-dir")
    return FolderState(Path(str(folder)), request) if folder else ContextState(context, request)


def state_after(kept: StatesByRound, last_used: int, fresh: State, client: int) -> State:
    """Return the state after the last answer that the server used; a fresh one if there is none, or it is lost."""
    if last_used == 0 or not fresh:
        return fresh
    if last_used in kept:
        return kept[last_used]
    if not kept:
        LOG.warning("client %d has lost its state of round %d: it starts afresh", client, last_used)
        return fresh
    nearest = min(kept, key=lambda round_: abs(round_ - last_used))
    LOG.warning("client %d has lost its state of round %d: it takes that of %d", client, last_used, nearest)
    return kept[nearest]


def with_next(kept: StatesByRound, last_used: int, round_: int, after: State) -> StatesByRound:
    """Return what to keep after training a round: its state, and the one that it started from."""
    before = {last_used: kept[last_used]} if last_used in kept else {}
    return {**before, round_: after}


def _flat(kept: StatesByRound) -> State:
    return {f"{round_}/{key}": value for round_, state in kept.items() for key, value in state.items()}


def _nest(tensors: State) -> StatesByRound:
    kept: StatesByRound = {}
    for name, value in tensors.items():
        round_, _, key = name.partition("/")
        kept.setdefault(int(round_), {})[key] = value
    return kept
