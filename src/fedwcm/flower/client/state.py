"""A client's own state (control variates, duals, …), kept on the client between rounds.

A client that trains cannot know whether its answer will be used: it may arrive too late, or the server may be
killed before it has saved the round. So it keeps its state after the last round *and* the one that it started
from, and the server says with each request which round of this client it last used. Both sides then always agree,
and a round that is repeated after a crash starts from the same state as the first time.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from flwr.app import ConfigRecord, Context
from safetensors.torch import load, save

from fedwcm.core.checks import require
from fedwcm.core.types import State
from fedwcm.experiment.files import replacing
from fedwcm.flower.records import RequestId

LOG = logging.getLogger("flwr.fedwcm")

RUN_ID = re.compile(r"[0-9A-Za-z]{1,64}")
"""A run's name is part of the name of a file, and comes from the server."""

StatesByRound = dict[int, State]
"""States by the round after which the client had them."""


@dataclass(frozen=True)
class NodeFile:
    """A file on a client's node: in the folder that its config names as `state-dir`, else in Flower's context.

    The folder survives restarts; the context is lost when the SuperNode stops or the run ends.
    """

    context: Context
    name: str

    @property
    def _path(self) -> Path | None:
        folder = self.context.node_config.get("state-dir")
        return Path(str(folder)) / self.name if folder else None

    def read(self) -> bytes | None:
        """Return the content; None if there is none."""
        if (path := self._path) is not None:
            return path.read_bytes() if path.exists() else None
        kept = self.context.state.config_records.get(self.name)
        return None if kept is None else cast(bytes, kept["data"])

    def write(self, data: bytes) -> None:
        """Replace the content; what a client learned from its data is for its owner only."""
        if (path := self._path) is None:
            self.context.state[self.name] = ConfigRecord({"data": data})
            return
        with replacing(path, 0o600) as draft:
            draft.write_bytes(data)


def state_file(context: Context, request: RequestId) -> NodeFile:
    """Return the file of a client's states in a run."""
    require(RUN_ID.fullmatch(request.run_id) is not None, "run_id", request.run_id, "1 to 64 letters and digits")
    return NodeFile(context, f"client-{request.client}-{request.run_id}.safetensors")


def read_states(file: NodeFile, device: torch.device) -> StatesByRound:
    """Return the states that were kept."""
    kept: StatesByRound = {}
    for name, value in load(file.read() or save({})).items():
        round_, _, key = name.partition("/")
        kept.setdefault(int(round_), {})[key] = value.to(device)
    return kept


def write_states(file: NodeFile, kept: StatesByRound) -> None:
    """Keep these states in the place of those before."""
    flat = {f"{round_}/{key}": value for round_, state in kept.items() for key, value in state.items()}
    file.write(save({name: value.cpu().contiguous() for name, value in flat.items()}))


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
