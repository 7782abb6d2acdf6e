"""Checkpoints: everything that a run needs to resume as if it had never stopped, written atomically, no pickle.

A checkpoint is one safetensors file with the model, its buffers, the method's state, the state of the clients that
took part, and in the metadata the round and the history so far. Generators need no saving: random numbers are
addressed by seed, purpose, round and client.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedwcm.core.types import State
from fedwcm.engine.rounds import ServerState
from fedwcm.engine.store import ClientStore
from fedwcm.runs.records import RoundRecord

KEPT = 2
"""Checkpoints kept in a folder: the newest, and the previous one in case the newest is damaged."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint, but for the state of the clients."""

    server: ServerState
    history: list[RoundRecord]
    seconds: float


def save(folder: Path, saved: Checkpoint, store: ClientStore) -> None:
    """Write a checkpoint of this round; a crash at any moment leaves the earlier ones intact."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = _tensors(saved.server, store)
    facts = {
        "round": saved.server.round,
        "seconds": saved.seconds,
        "history": [record.to_json() for record in saved.history],
        "digest": _digest(tensors),
    }
    target = folder / f"round-{saved.server.round:06d}.safetensors"
    draft = target.with_suffix(".tmp")
    save_file(tensors, draft, metadata={"fedwcm": json.dumps(facts)})
    _flush_to_disk(draft)
    os.replace(draft, target)
    for old in _newest_first(folder)[KEPT:]:
        old.unlink()


def load(folder: Path, store: ClientStore, device: torch.device) -> tuple[Checkpoint | None, list[str]]:
    """Load the newest intact checkpoint and put its client state into the store.

    Returns:
        The checkpoint, None if there is none, and a complaint for each newer one that is damaged.
    """
    complaints: list[str] = []
    for path in _newest_first(folder):
        try:
            return _read(path, store, device), complaints
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            complaints.append(f"checkpoint {path.name} is damaged ({error}); falling back to the one before")
    return None, complaints


def _read(path: Path, store: ClientStore, device: torch.device) -> Checkpoint:
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["fedwcm"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    if _digest(tensors) != facts["digest"]:
        raise ValueError("its contents do not match its digest")
    state = {key.removeprefix("client/"): value for key, value in tensors.items() if key.startswith("client/")}
    if state:
        store.write(tensors["clients"].numpy(), state)
    own = {key.removeprefix("server/"): value for key, value in tensors.items() if key.startswith("server/")}
    method = {key: value.to(device) if value.dim() else value for key, value in own.items()}
    server = ServerState(facts["round"], tensors["x"].to(device), tensors["buffers"].to(device), method)
    history = [RoundRecord.from_json(record, f"record {n}") for n, record in enumerate(facts["history"], 1)]
    return Checkpoint(server, history, facts["seconds"])


def _tensors(server: ServerState, store: ClientStore) -> State:
    tensors = {"x": server.x, "buffers": server.buffers}
    tensors |= {f"server/{key}": value for key, value in server.method.items()}
    visited = store.visited()
    if len(visited):
        tensors["clients"] = torch.from_numpy(visited)
        rows = store.read(visited, torch.device("cpu"))
        tensors |= {f"client/{key}": value for key, value in rows.items()}
    return {key: value.detach().cpu().contiguous() for key, value in tensors.items()}


def _digest(tensors: State) -> str:
    total = hashlib.blake2b(digest_size=16)
    for key in sorted(tensors):
        total.update(key.encode())
        total.update(tensors[key].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("round-*.safetensors") if re.fullmatch(r"round-\d+", path.stem)]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("round-")), reverse=True)


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
