"""Damaged configurations, checkpoints and encrypted messages are refused, with an error meant for people."""

import hashlib
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import save

from fedwcm.config.flags import config_from
from fedwcm.config.schema import SECTIONS, Config
from fedwcm.config.settings import from_settings, to_settings
from fedwcm.engine.rounds import ServerState
from fedwcm.engine.store import ClientStore
from fedwcm.experiment import checkpoint
from fedwcm.experiment.checkpoint import History
from fedwcm.experiment.client_rows import digest_tensors
from fedwcm.experiment.components import Components
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.records import RoundRecord
from fedwcm.privacy.messages import Contribution, DecryptRequest, PublicKey
from fedwcm.privacy.wire import MAGIC, Message, ProtocolError

from .mutations import damaged

COUNTS = [200, pytest.param(100_000, marks=pytest.mark.slow)]


def refusal(config: Callable[[], Config]) -> str | None:
    """What is said against a configuration; None if nothing is. Any other error than that is raised."""
    try:
        Components.of(config())
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_configuration_is_refused_or_is_another_one(count: int, tmp_path: Path) -> None:
    sections: dict[str, dict[str, object]] = {}
    for key, value in {**to_settings(Config()), "method.alpha": 0.2, "partition.beta": 0.1}.items():
        section, _, option = key.partition(".")
        sections.setdefault(section, {})[option] = value
    path, refusals = tmp_path / "config.toml", []
    for text in damaged(tomli_w.dumps(sections).encode(), count, seed=1):
        path.write_bytes(text)
        refusals.append(refusal(lambda: config_from(config=path)))
    assert "" not in refusals
    assert sum(words is not None for words in refusals) > count // 2


TEXTS = ["", "none", "auto", "x:y", "[" * 3000]
NUMBERS = [-1, 0, 1, 2**70, 10**400, 1e308, float("nan")]
VALUES: list[object] = [None, True, [], ["a"], {}, *TEXTS, *NUMBERS]


@pytest.mark.parametrize("count", COUNTS)
def test_wrong_values_are_refused_by_name(count: int) -> None:
    rng, refused = random.Random(2), 0
    known = [key for key in to_settings(Config()) if key.partition(".")[0] in SECTIONS]
    known += ["method.name", "loss.name", "sampler.name", "method.alpha", "method.q", "loss.gamma", "run", "x.y"]
    for _ in range(count):
        settings = {rng.choice(known): rng.choice(VALUES) for _ in range(rng.choice((1, 1, 2, 4)))}
        words = refusal(lambda given=settings: from_settings(given))  # type: ignore[misc]
        if words is not None:
            refused += 1
            assert any(word in words for key in settings for word in key.split(".")), (settings, words)
    assert refused > count // 4


def good_checkpoint(folder: Path) -> tuple[bytes, ClientStore, ServerState]:
    store = ClientStore(5, {"c": torch.zeros(1, 3)})
    store.write(np.array([1, 3]), {"c": torch.ones(2, 3)})
    state = ServerState(4, torch.arange(20.0), torch.zeros(2), {"alpha": torch.tensor(0.5), "m": torch.ones(20)})
    record = RoundRecord(round=4, seconds=0.5, participants=2, bytes_down=8, bytes_up=8)
    history = History(RunFolder(folder))
    history.append(record)
    checkpoint.save(folder, checkpoint.Checkpoint(state, history.mark(), 1.5, {}), store)
    return (folder / "round-000004.safetensors").read_bytes(), store, state


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_checkpoint_is_noticed_and_never_half_used(count: int, tmp_path: Path) -> None:
    good, store, state = good_checkpoint(tmp_path)
    path = tmp_path / "round-000004.safetensors"
    for content in damaged(good, count, seed=3):
        if content == good:
            continue
        path.write_bytes(content)
        saved, complaints = checkpoint.load(tmp_path, store, state, History(RunFolder(tmp_path)))
        assert saved is None
        assert len(complaints) == 1
        assert complaints[0].startswith("checkpoint round-000004.safetensors is damaged (")
    assert store.visited_clients().tolist() == [1, 3]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": torch.zeros(21)}, "x is that of another model"),
        ({"x": torch.zeros(20, dtype=torch.float64)}, "x is that of another model"),
        ({"buffers": torch.zeros(3)}, "buffers is that of another model"),
        ({"clients": torch.tensor([1, 5])}, "clients are those of another run"),
        ({"clients": torch.tensor([-1, 3])}, "clients are those of another run"),
        ({"clients": torch.tensor([1.0, 3.0])}, "clients are those of another run"),
        ({"client/c": torch.zeros(2, 4)}, "clients are those of another run"),
        ({"client/other": torch.zeros(2, 3)}, "clients are those of another run"),
    ],
)
def test_a_whole_checkpoint_of_something_else_is_refused(
    change: dict[str, torch.Tensor], reason: str, tmp_path: Path
) -> None:
    _, store, state = good_checkpoint(tmp_path)
    tensors = {**checkpoint._tensors(checkpoint.Checkpoint(state, History().mark(), 1.0, {}), store), **change}
    facts = '{"round": 4, "seconds": 1.0, "selected_round": null, "history": []}'
    metadata = {"fedwcm": facts, "digest": digest_tensors(tensors, facts)}
    (tmp_path / "round-000004.safetensors").write_bytes(save(tensors, metadata=metadata))
    saved, [complaint] = checkpoint.load(tmp_path, store, state, History(RunFolder(tmp_path)))
    assert saved is None
    assert reason in complaint


def with_checksum(kind: int, body: bytes) -> bytes:
    framed = struct.pack(">4sBBI", MAGIC, 1, kind, len(body)) + body
    return framed + hashlib.sha256(framed).digest()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("reframed", [False, True])
def test_a_damaged_message_is_refused_or_is_another_one(reframed: bool, count: int) -> None:
    """Damaged on the way, where the checksum tells; or made by somebody who knows how to make one."""
    session, key = bytes(range(16)), bytes(16)
    messages: list[Message] = [
        PublicKey(session, "client", key, 7, b"p" * 90),
        Contribution(session, "client", key, (b"c" * 40, b"d" * 40)),
        DecryptRequest(session, key, 3, 4, (b"c" * 40,)),
    ]
    for message in messages:
        frame = message.to_bytes()
        for data in damaged(frame[10:-32] if reframed else frame, count // len(messages), seed=4):
            given = with_checksum(message.kind, data) if reframed else data
            try:
                read = Message.from_bytes(given, 1 << 16)
            except ProtocolError:
                continue
            assert read.to_bytes() == given


@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_damaged_keys_and_ciphertexts_are_refused_or_open_to_something(count: int) -> None:
    pytest.importorskip("tenseal")
    from fedwcm.privacy.bfv import PublicContext, SecretKey

    secret, public = SecretKey.generate()
    key, context = SecretKey(secret), PublicContext(public)
    sealed = context.encrypt(np.arange(8))
    for data in damaged(sealed, count // 2, seed=5):
        try:
            opened = key.decrypt(data, 8)
        except ProtocolError:
            continue
        assert opened.shape == (8,)
    for data in damaged(public, count // 2, seed=6):
        with suppress(ProtocolError):
            PublicContext(data).encrypt(np.arange(8))
