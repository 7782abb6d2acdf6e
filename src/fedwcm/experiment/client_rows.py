"""The state of clients next to the checkpoints: a file for each client whose state is large.

A file is written once and never changed: a checkpoint writes the state of the clients that took part since the
last one, one client at a time, and refers to the files of the others. Small states are in the checkpoint itself.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fedwcm.core.types import State
from fedwcm.engine.store import ClientStore
from fedwcm.experiment.files import replacing

ROW_BYTES = 2**16
"""Bytes of a client's state from which it has a file of its own."""

CLIENTS, ROUNDS, DIGESTS = "clients", "clients/round", "clients/digest"
"""What a checkpoint says of the files: whose they are, the round of their names, their digests."""

_CPU = torch.device("cpu")


def has_files(tensors: Iterable[str]) -> bool:
    """Return whether a checkpoint with these tensors refers to files."""
    return ROUNDS in tensors


def save_rows(folder: Path, store: ClientStore, round_: int) -> State:
    """Write the state of the clients that has no file yet; return what the checkpoint says of all files."""
    visited = store.visited_clients()
    for client in visited.tolist():
        if client not in store.saved:
            state = store.read(np.array([client]), _CPU)
            with replacing(_path(folder, client, round_)) as draft:
                save_file(state, draft)
            store.saved[client] = round_, digest_tensors(state)
    rounds, digests = zip(*(store.saved[client] for client in visited.tolist()), strict=True)
    return {
        CLIENTS: torch.from_numpy(visited),
        ROUNDS: torch.tensor(rounds),
        DIGESTS: torch.tensor([list(bytes.fromhex(digest)) for digest in digests], dtype=torch.uint8),
    }


def stage_rows(folder: Path, tensors: State, store: ClientStore) -> None:
    """Read the files of a checkpoint, one after the other; the store has their state when it is committed.

    Raises:
        ValueError: a file is not the one that the checkpoint refers to.
    """
    store.reserve(tensors[CLIENTS].numpy())
    for client, state in read_rows(folder, tensors):
        one = np.array([client])
        if not store.accepts(one, state):
            raise ValueError(f"the state of client {client} is that of another run")
        store.stage(one, state)


def read_rows(folder: Path, tensors: State) -> Iterator[tuple[int, State]]:
    """Yield the clients of a checkpoint and their state, read file by file.

    Raises:
        ValueError: a file is not the one that the checkpoint refers to.
    """
    for client, (round_, digest) in _files(tensors).items():
        path = _path(folder, client, round_)
        with safe_open(path, framework="pt") as file:
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        if digest_tensors(state) != digest:
            raise ValueError(f"{path.name} is not the state of client {client} that it refers to")
        yield client, state


def commit_rows(tensors: State, store: ClientStore) -> None:
    """Let what was staged be the state of the clients of a checkpoint."""
    store.commit(store.round, tensors[CLIENTS].numpy())
    store.saved |= _files(tensors)


def remove_unused(folder: Path, checkpoints: Iterable[Path]) -> None:
    """Remove the files to which none of these checkpoints refers."""
    used = set[Path]()
    for path in checkpoints:
        with safe_open(path, framework="pt") as file:
            if has_files(file.keys()):
                files = _files({key: file.get_tensor(key) for key in (CLIENTS, ROUNDS, DIGESTS)})
                used |= {_path(folder, client, round_) for client, (round_, _) in files.items()}
    for path in set(folder.glob("clients/*")) - used:
        path.unlink()


def digest_tensors(tensors: State, text: str = "") -> str:
    """Return a digest of these tensors and of a text beside them."""
    total = hashlib.blake2b(text.encode(), digest_size=16)
    for key, tensor in sorted(tensors.items()):
        total.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _files(tensors: State) -> dict[int, tuple[int, str]]:
    """Return, for each client of a checkpoint, the round in the name of its file, and its digest."""
    digests = [bytes(digest).hex() for digest in tensors[DIGESTS].tolist()]
    return dict(zip(tensors[CLIENTS].tolist(), zip(tensors[ROUNDS].tolist(), digests, strict=True), strict=True))


def _path(folder: Path, client: int, round_: int) -> Path:
    return folder / "clients" / f"{client}-round-{round_:06d}.safetensors"
