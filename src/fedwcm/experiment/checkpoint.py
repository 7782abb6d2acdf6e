"""Checkpoints: everything that a run needs to resume as if it had never stopped, written atomically, no pickle.

A checkpoint is one safetensors file with the model, its buffers, its moving average, the method's state, the state
of the clients that took part (or, if it is large, references to their files, `client_rows.py`), the model of the
selected round, and in the metadata the round, the options, and how much of `metrics.jsonl` belongs to it: its size
does not grow with the rounds. Generators need no saving: random numbers are addressed by seed, purpose, round and
client.
"""

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedwcm.config.settings import Settings
from fedwcm.core.types import State
from fedwcm.engine.rounds import ServerState
from fedwcm.engine.store import ClientStore
from fedwcm.experiment import client_rows
from fedwcm.experiment.client_rows import digest_tensors
from fedwcm.experiment.evaluator import EvaluatedModel
from fedwcm.experiment.files import replace_file, replacing, require_readable
from fedwcm.experiment.folder import RunFolder, metrics_line, read_round
from fedwcm.experiment.records import RoundRecord


class MetricsChangedError(ValueError):
    """The metrics are not those that a checkpoint was saved with."""


@dataclass(frozen=True)
class HistoryMark:
    """A place in `metrics.jsonl`: the bytes before it, and their digest."""

    size: int
    digest: str


class History:
    """The records in memory and, if the run has a folder, the lines that were appended to its metrics."""

    def __init__(self, folder: RunFolder | None = None) -> None:
        self.records: list[RoundRecord] = []
        self._folder = folder
        self._content = b""
        self._set(b"")

    def mark(self) -> HistoryMark:
        """Return the end of what has been recorded."""
        return HistoryMark(self._size, self._digest.hexdigest())

    def append(self, record: RoundRecord) -> None:
        """Record a round."""
        if self._folder is not None:
            self._folder.append_metrics(record)
            line = metrics_line(record).encode()
            self._digest.update(line)
            self._size += len(line)
        self.records.append(record)

    def restore(self, mark: HistoryMark) -> None:
        """Return to the history up to this mark.

        Raises:
            MetricsChangedError: the file does not begin with it.
        """
        assert self._folder is not None, "a run in memory has no checkpoint"
        path = self._folder.metrics_file
        content = path.read_bytes()[: mark.size] if path.exists() else b""
        if (len(content), _hash(content).hexdigest()) != (mark.size, mark.digest):
            raise MetricsChangedError(f"{path} is missing, was cut short or was edited since")
        self.records = [read_round(line, f"{path}, line {n}") for n, line in enumerate(content.splitlines(), 1)]
        self._set(content)

    def begin(self) -> None:
        """Make the file hold these records alone: lines after the checkpoint are played again."""
        if self._folder is None:
            return
        path = self._folder.metrics_file
        if not path.exists() or path.read_bytes() != self._content:
            replace_file(path, self._content)
        self._content = b""

    def sync(self) -> None:
        """Put the lines on disk before a checkpoint refers to them."""
        if self._folder is not None:
            with self._folder.metrics_file.open("ab") as file:
                os.fsync(file.fileno())

    def _set(self, content: bytes) -> None:
        self._content, self._size, self._digest = content, len(content), _hash(content)


def _hash(content: bytes) -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)


KEPT = 2
"""Checkpoints kept in a folder: the newest, and the previous one in case the newest is damaged."""

SERVER, CLIENT, AVERAGE, SELECTED, TURNS = "server/", "client/", "average/", "selected/", "turns/"
"""Prefixes of what the method's server and clients keep, of the average model and that of the selected round."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint, but for the state of the clients."""

    server: ServerState
    history: HistoryMark
    seconds: float
    settings: Settings
    """The run's options: its `config.toml` may be edited."""
    selected: EvaluatedModel | None = None


def save(folder: Path, saved: Checkpoint, store: ClientStore) -> None:
    """Write a checkpoint of this round; a crash at any moment leaves the earlier ones intact."""
    tensors = _tensors(saved, store)
    if store.bytes_per_client >= client_rows.ROW_BYTES and len(store.visited_clients()):
        tensors |= client_rows.save_rows(folder, store, saved.server.round)
    facts = json.dumps(
        {
            "round": saved.server.round,
            "seconds": saved.seconds,
            "max_norm": saved.server.max_norm,
            "selected_round": None if saved.selected is None else saved.selected.round,
            "history": asdict(saved.history),
            "settings": saved.settings,
        }
    )
    metadata = {"fedwcm": facts, "digest": digest_tensors(tensors, facts)}
    with replacing(folder / f"round-{saved.server.round:06d}.safetensors") as draft:
        save_file(tensors, draft, metadata=metadata)
    for old in (*_newest_first(folder)[KEPT:], *folder.glob("*.tmp")):  # drafts that a crash left
        old.unlink()
    with suppress(SafetensorError):  # of a damaged one, nobody knows what it needs
        client_rows.remove_unused(folder, _newest_first(folder))


def load(
    folder: Path, store: ClientStore, like: ServerState, history: History
) -> tuple[Checkpoint | None, list[str]]:
    """Load the newest intact checkpoint, and put its client state into the store and its rounds into the history.

    Args:
        folder: the run's checkpoints.
        store: where the clients' state is put.
        like: a state of the run: a checkpoint of another model is refused.
        history: where the rounds before the checkpoint are put.

    Returns:
        The checkpoint, None if there is none, and a complaint for each newer one that is damaged.

    Raises:
        ValueError: there are intact checkpoints, but the metrics before them have changed.
    """
    complaints: list[str] = []
    changed: MetricsChangedError | None = None
    for path in _newest_first(folder):
        require_readable(path)
        try:
            facts, tensors = _read(path)
            _require_like(like, tensors, store)
            if client_rows.has_files(tensors):
                client_rows.stage_rows(folder, tensors, store)
            history.restore(HistoryMark(**facts["history"]))
        except MetricsChangedError as error:
            changed = error
            complaints.append(f"checkpoint {path.name} cannot be used: {error}")
            continue
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            complaints.append(f"checkpoint {path.name} is damaged ({error})")
            continue
        if client_rows.has_files(tensors):
            client_rows.commit_rows(tensors, store)
        elif clients := _part(tensors, CLIENT):
            store.write(tensors["clients"].numpy(), clients)
        device = like.x.device
        method = {key: value.to(device) if value.dim() else value for key, value in _part(tensors, SERVER).items()}
        average = {key: value.to(device) for key, value in _part(tensors, AVERAGE).items()}
        turns = {key: value.to(device) if "/" in key else value for key, value in _part(tensors, TURNS).items()}
        x, buffers = tensors["x"].to(device), tensors["buffers"].to(device)
        server = ServerState(facts["round"], x, buffers, method, average, facts["max_norm"], turns)
        selected = None
        if facts["selected_round"] is not None:
            x, buffers = (tensors[SELECTED + key].to(device) for key in ("x", "buffers"))
            selected = EvaluatedModel(facts["selected_round"], x, buffers)
        return Checkpoint(server, history.mark(), facts["seconds"], facts["settings"], selected), complaints
    if changed is not None:
        raise ValueError(f"the run cannot go on: {changed}. Put it back, or remove {folder} to start with round 1")
    return None, complaints


def settings_of(folder: Path) -> Settings | None:
    """Return the options of the run that wrote the newest readable checkpoint; None if there is none."""
    for path in _newest_first(folder):
        with suppress(SafetensorError, OSError, ValueError, LookupError), safe_open(path, framework="pt") as file:
            settings: Settings = json.loads(file.metadata()["fedwcm"])["settings"]
            return settings
    return None


def read_clients(folder: Path) -> dict[int, State]:
    """Return what each client keeps, by the newest checkpoint; nothing if there is none."""
    for path in _newest_first(folder)[:1]:
        _, tensors = _read(path)
        if client_rows.has_files(tensors):
            files = client_rows.read_rows(folder, tensors)
            return {client: {key: rows[0] for key, rows in state.items()} for client, state in files}
        ids, state = tensors.get(client_rows.CLIENTS, torch.zeros(0)).tolist(), _part(tensors, CLIENT)
        return {client: {key: rows[i] for key, rows in state.items()} for i, client in enumerate(ids)}
    return {}


def _read(path: Path) -> tuple[dict[str, Any], State]:
    """Return the facts and tensors in a file, checked against its digest."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        # Copies, which are aligned in memory as new tensors are: matrix products round by their alignment.
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 (not a mapping)
    facts = metadata.get("fedwcm", "")
    if metadata.get("digest") != digest_tensors(tensors, facts):
        raise ValueError("its contents do not match its digest")
    return json.loads(facts), tensors


def _require_like(like: ServerState, tensors: State, store: ClientStore) -> None:
    model = {"x": like.x, "buffers": like.buffers}
    others = {
        prefix + key: value
        for prefix in (AVERAGE, SELECTED)
        for key, value in model.items()
        if prefix + "x" in tensors
    }
    for key, expected in {**model, **others}.items():
        if key not in tensors or (tensors[key].shape, tensors[key].dtype) != (expected.shape, expected.dtype):
            raise ValueError(f"its {key} is that of another model")
    clients, ids = _part(tensors, CLIENT), tensors.get("clients", torch.zeros(0)).numpy()
    if (clients and not store.accepts(ids, clients)) or (client_rows.has_files(tensors) and not store.knows(ids)):
        raise ValueError("its clients are those of another run")


def _tensors(saved: Checkpoint, store: ClientStore) -> State:
    server, selected = saved.server, saved.selected
    tensors = {"x": server.x, "buffers": server.buffers}
    if selected is not None:
        tensors |= {SELECTED + "x": selected.x, SELECTED + "buffers": selected.buffers}
    tensors |= {SERVER + key: value for key, value in server.method.items()}
    tensors |= {AVERAGE + key: value for key, value in server.average.items()}
    tensors |= {TURNS + key: value for key, value in server.turns.items()}
    visited = store.visited_clients()
    if len(visited) and store.bytes_per_client < client_rows.ROW_BYTES:
        tensors["clients"] = torch.from_numpy(visited)
        rows = store.read(visited, torch.device("cpu"))
        tensors |= {CLIENT + key: value for key, value in rows.items()}
    return {key: value.detach().cpu().contiguous() for key, value in tensors.items()}


def _part(tensors: State, prefix: str) -> State:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _newest_first(folder: Path) -> list[Path]:
    paths = [path for path in folder.glob("round-*.safetensors") if re.fullmatch(r"round-\d+", path.stem)]
    return sorted(paths, key=lambda path: int(path.stem.removeprefix("round-")), reverse=True)
