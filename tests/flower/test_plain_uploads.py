"""In a run that hides class counts, no upload says them outright beside the model's update."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedwcm.flower.app.options import read
from fedwcm.flower.records import RUN, config_record
from fedwcm.methods import METHODS
from fedwcm.privacy.options import PrivacyOptions
from fedwcm.teacher import TEACHER_FILE

from .federation import FULL, counts_of, finish, grid, on_flower, write_teacher

UPDATES = ("delta", "buffers", "gradient")
"""What training gives: docs/privacy.md says in numbers what it tells of counts."""
ONE_ROUND: dict[str, Any] = {**FULL, "run.rounds": 1}


def columns(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """All vectors with a number for each class that an array has along one of its axes, a row each."""
    tables = [np.moveaxis(array, axis, -1).reshape(-1, 10) for axis, size in enumerate(array.shape) if size == 10]
    return np.concatenate(tables) if tables else np.zeros((0, 10))


def says(array: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> bool:
    """Whether a row of an upload is the class counts, or which classes there are, up to scale and shift."""
    rows = columns(array.astype(np.float64))
    rows = rows - rows.mean(axis=1, keepdims=True)
    for known in (counts, counts > 0):
        own = known - known.mean()
        rest = rows - np.outer(rows @ own / (own @ own), own)
        if (np.linalg.norm(rest, axis=1) < 1e-5 * np.linalg.norm(rows, axis=1)).any():
            return True
    return False


def told_by(name: str, **options: Any) -> set[str]:
    """The uploads of a run's first round that say the counts of a client."""
    found = set[str]()

    def listen(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type.startswith("train.") and reply.has_content():
            uploads, own = reply.content.array_records["upload"], counts_of(client)
            found.update(key for key in uploads if key not in UPDATES and says(uploads[key].numpy(), own))
        return reply

    on_flower(name, listen, **ONE_ROUND, **options)
    return found


@pytest.fixture(autouse=True)
def teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher's file where methods look for it."""
    monkeypatch.chdir(tmp_path)
    write_teacher(tmp_path / TEACHER_FILE)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"fedbn"}))  # which needs a model that normalises
def test_a_method_whose_uploads_say_counts_is_refused_in_a_private_run(name: str) -> None:
    private: dict[str, Any] = {"privacy.epsilon": 1.0}
    if METHODS[name].discloses or METHODS[name].reads_losses:
        with pytest.raises(ValueError, match=rf"method.name = '{name}' is not allowed: .*with privacy"):
            told_by(name, **private)
    else:
        assert not told_by(name, **private)


def test_such_uploads_do_say_counts_where_nothing_is_hidden() -> None:
    assert told_by("fedncm") == {"counts", "features"}


def test_a_client_does_not_upload_its_counts_whatever_the_server_asks() -> None:
    """A server that leaves out its own check gets an error from every client."""
    nodes = grid("fedncm")
    name, node = next(iter(nodes.nodes.items()))
    private = replace(read(nodes.run_config).config, privacy=PrivacyOptions(epsilon=1.0))
    asked: Any = {"run_id": "a", "task": "probe", "round": 1, "client": 0, "lr": 0.1, "last_used": 0}
    content: Any = {RUN: config_record(private, False, False), "asked": ConfigRecord(asked)}
    reply = node.handle(Message(RecordDict(content), name, "train.probe"))
    assert "its clients upload how many samples of each class they have" in reply.error.reason


def test_a_server_names_no_file_of_a_node_as_a_teacher_s(tmp_path: Path) -> None:
    write_teacher(tmp_path / "other.safetensors")
    named = {"loss.name": "distillation", "loss.teacher": str(tmp_path / "other.safetensors")}
    with pytest.raises(RuntimeError, match="no file that this node allows"):
        on_flower("fedavg", **ONE_ROUND, **named)
    finish(grid("fedavg", node={"teacher": named["loss.teacher"]}, **ONE_ROUND, **named))
