"""The protocol of secure aggregation, message by message: Flower's mods on one side, our server on the other."""

import io
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from fedwcm.core.types import Floats
from fedwcm.flower.secure.client import answer_stage, keep_upload
from fedwcm.flower.secure.protocol import SecureSum, SecureSumError
from fedwcm.flower.secure.uploads import directions, shown_alone
from fedwcm.flower.untrusted import UnusableError

SIZE = 7
Answer = Callable[[ConfigRecord], ConfigRecord | None]
"""What a client makes of its answer to a stage; None is silence."""


class Party:
    """Clients with a vector each, some of which drop out or lie at a stage."""

    def __init__(self, clients: int, lies: Mapping[tuple[int, str], Answer] | None = None) -> None:
        self.vectors = np.random.default_rng(0).normal(size=(clients, SIZE))
        self._lies = lies or {}
        self._contexts = [Context(1, 1, {}, RecordDict(), {}) for _ in range(clients)]
        for context, vector in zip(self._contexts, self.vectors, strict=True):
            facts = ConfigRecord({"run_id": "s", "round": 1, "task": "train"})
            upload = ArrayRecord({"delta": Array(vector)})
            keep_upload(RecordDict({"upload": upload, "answers": facts}), context)

    def ask(
        self, contents: Mapping[int, RecordDict], receive: Callable[[int, RecordDict], None]
    ) -> dict[int, str]:
        lost = {}
        for client, content in contents.items():
            stage = str(content.config_records[RECORD_KEY_CONFIGS][Key.STAGE])
            message = Message(content, dst_node_id=10**18 + client, message_type="train.secure")
            answer = answer_stage(secaggplus_mod, message, self._contexts[client], client)
            answer_record = self._lies.get((client, stage), lambda record: record)(
                answer.config_records[RECORD_KEY_CONFIGS]
            )
            try:
                if answer_record is None:
                    raise UnusableError("silence")
                receive(client, RecordDict({RECORD_KEY_CONFIGS: answer_record}))
            except UnusableError as error:
                lost[client] = str(error)
        return lost

    def summed(self, weights: Floats) -> tuple[SecureSum, Floats]:
        protocol = SecureSum(self.ask, range(len(self.vectors)), 8.0)  # type: ignore[arg-type]
        facts = {"run_id": "s", "round": 1, "task": "train", "key": "delta"}
        questions = {client: {**facts, "weights": column.tolist()} for client, column in enumerate(weights.T)}
        protocol.collect(questions, (len(weights), SIZE))
        return protocol, protocol.unmask()


def gone(_: ConfigRecord) -> None:
    return None


def make_answer(**facts: Any) -> Answer:
    return lambda record: ConfigRecord({**record, **facts})


def longer(name: str, more: bytes) -> Answer:
    def lengthened(value: Any) -> Any:
        return [part + more for part in value] if isinstance(value, list) else value + more

    return lambda record: ConfigRecord({**record, name: lengthened(record[name])})


def pem(key: Any) -> bytes:
    data: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


@pytest.mark.parametrize("clients", [3, 4, 9])
def test_the_sum_is_that_of_the_vectors(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nine clients, each shares its secrets with four others."""
    monkeypatch.setattr("fedwcm.flower.secure.protocol.MOST_SHARES", 5)
    weights = np.random.default_rng(1).uniform(-1, 1, (2, clients))
    party = Party(clients)
    protocol, total = party.summed(weights)
    assert protocol.contributors == set(range(clients))
    np.testing.assert_allclose(total, weights @ party.vectors, atol=16 * clients / 2**24)


@pytest.mark.parametrize(
    ("stage", "dropped", "summed"),
    [
        (Stage.SETUP, {1, 4}, {0, 2, 3, 5}),
        (Stage.SHARE_KEYS, {1, 4}, {0, 2, 3, 5}),
        (Stage.COLLECT_MASKED_VECTORS, {1, 4}, {0, 2, 3, 5}),
        (Stage.UNMASK, {1, 4}, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_clients_may_drop_out_at_every_stage(stage: str, dropped: set[int], summed: set[int]) -> None:
    party = Party(6, {(client, stage): gone for client in dropped})
    protocol, total = party.summed(np.ones((1, 6)))
    assert protocol.contributors == summed
    assert protocol.lost == dict.fromkeys(dropped, "silence")
    np.testing.assert_allclose(total[0], party.vectors[sorted(summed)].sum(axis=0), atol=1e-5)


@pytest.mark.parametrize("stage", Stage.all())
def test_too_few_clients_reveal_nothing(stage: str) -> None:
    """Four of six are needed; three are there."""
    with pytest.raises(SecureSumError, match=r"3 of 4"):
        Party(6, {(client, stage): gone for client in (0, 2, 5)}).summed(np.ones((1, 6)))


@pytest.mark.parametrize(
    ("stage", "lie"),
    [
        (Stage.SETUP, make_answer(pk1=b"no key")),
        (Stage.SETUP, make_answer(pk2=7)),
        (Stage.SETUP, make_answer(more=1)),
        (Stage.SETUP, make_answer(pk1=pem(ec.generate_private_key(ec.SECP256R1())))),
        (Stage.SETUP, make_answer(pk2=pem(rsa.generate_private_key(65537, 2048)))),
        (Stage.SETUP, lambda record: ConfigRecord({**record, "pk2": record["pk1"]})),
        (Stage.SHARE_KEYS, make_answer(dsts=[0, 0, 2, 3])),
        (Stage.SHARE_KEYS, make_answer(dsts=[1, 2, 3, 10**9])),
        (Stage.SHARE_KEYS, make_answer(ctxts=["text"])),
        (Stage.SETUP, longer(Key.PUBLIC_KEY_1, b"\n" * 4096)),
        (Stage.SHARE_KEYS, longer(Key.CIPHERTEXT_LIST, bytes(4096))),
        (Stage.UNMASK, longer(Key.SHARE_LIST, bytes(1024))),
        (Stage.COLLECT_MASKED_VECTORS, make_answer(masked_params=[])),
        (Stage.COLLECT_MASKED_VECTORS, make_answer(masked_params=[b"", b"PK\x03\x04"])),
        (Stage.COLLECT_MASKED_VECTORS, make_answer(masked_params=3.5)),
        (Stage.UNMASK, make_answer(nids=[7])),
        (Stage.UNMASK, make_answer(shares=[1, 2])),
    ],
)
def test_who_answers_nonsense_is_left_out(stage: str, lie: Answer) -> None:
    party = Party(5, {(4, stage): lie})
    protocol, total = party.summed(np.ones((1, 5)))
    assert set(protocol.lost) == {4}
    np.testing.assert_allclose(total[0], party.vectors[sorted(protocol.contributors)].sum(axis=0), atol=1e-5)


def test_who_repeats_another_s_key_is_left_out_and_the_other_is_not() -> None:
    """Also if the same key is written in another way. The order of the clients is not known beforehand."""
    heard: list[Any] = []

    def second_repeats_first(record: ConfigRecord) -> ConfigRecord:
        heard.append(record["pk1"])
        return ConfigRecord({**record, "pk2": b"\n" + heard[0]}) if len(heard) == 2 else record

    party = Party(5, {(client, Stage.SETUP): second_repeats_first for client in range(5)})
    protocol, _ = party.summed(np.ones((1, 5)))
    assert list(protocol.lost.values()) == ["its public key is already in use: all keys must differ"]


def test_a_sum_that_no_clients_can_have_is_not_believed() -> None:
    """Numbers of 5 clients have 2²⁹ levels: their sum ends far below the modulus."""

    def half_the_modulus_more(record: ConfigRecord) -> ConfigRecord:
        counted, masked = cast(list[bytes], record[Key.MASKED_PARAMETERS])
        stream = io.BytesIO()
        np.save(stream, (np.load(io.BytesIO(masked)) + 2**31) % 2**32)
        return ConfigRecord({**record, Key.MASKED_PARAMETERS: [counted, stream.getvalue()]})

    with pytest.raises(SecureSumError, match="the sum is beyond what 5 clients can add"):
        Party(5, {(4, Stage.COLLECT_MASKED_VECTORS): half_the_modulus_more}).summed(np.ones((1, 5)))


def test_wrong_shares_spoil_the_sum_and_are_noticed() -> None:
    """A share that was tampered with cannot be told from a right one; what comes out of it can."""

    def tampered(record: ConfigRecord) -> ConfigRecord:
        shares: Any = record[Key.SHARE_LIST]
        return ConfigRecord({**record, Key.SHARE_LIST: [share[:-1] + bytes([share[-1] ^ 1]) for share in shares]})

    with pytest.raises(SecureSumError, match=r"cannot be put together|do not cancel"):
        Party(5, {(0, Stage.UNMASK): tampered}).summed(np.ones((1, 5)))


def test_flower_s_masks_are_as_weak_as_the_documentation_says() -> None:
    """If this fails, Flower's masks have become better, and docs/flower-mods.md must say so."""
    key, other = b"AAAA" * 11, b"BBBBBBBB" + b"AAAA" * 9
    (mask,), (same) = pseudo_rand_gen(key, 2**32, [(4,)]), pseudo_rand_gen(other, 2**32, [(4,)])[0]
    np.testing.assert_array_equal(mask, same)


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([[1, 1, 1]], None),
        ([[1, 0.5, -0.06, 0.04]], (0, 1)),
        ([[1, 1, 1, 1], [-1, 0.01, 0, 0]], (0, 1)),
        ([[1, 1, 1, 1, 1], [3, 3, 3, 3, 4]], (4,)),
        ([[1, 1, 1, 1, 1], [3, 3, 3, 4, 4]], (3, 4)),
        ([[1, 1, 1, 1, 1, 1], [3, 3, 3, 4, 4, 4]], None),
        ([[0, 0, 0, 0]], None),
    ],
)
def test_two_clients_that_a_combination_of_sums_consists_of_are_named(
    rows: list[list[float]], shown: tuple[int, ...] | None
) -> None:
    weights = np.array(rows, dtype=float)
    for most in (2, 3):
        group = shown_alone(weights, most)
        if shown is not None:
            assert group is not None
            assert set(shown) <= set(group)
            assert len(group) == most
    if len(weights.T) == 6:
        assert group in ((0, 1, 2), (3, 4, 5)), "three of one size are shown by a difference"
    elif shown is None and len(weights.T) == 4:
        assert group is None


@pytest.mark.parametrize("seed", range(5))
def test_the_pair_is_the_one_that_a_search_over_all_pairs_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.random((3, 7)) ** 6
    _, _, basis = np.linalg.svd(rows, full_matrices=False)
    shares = {
        pair: np.linalg.svd(basis[:, list(pair)], compute_uv=False)[0] ** 2 for pair in combinations(range(7), 2)
    }
    largest = max(shares, key=shares.__getitem__)
    group = shown_alone(rows)
    assert (group is not None) == (shares[largest] > 0.95)
    assert group is None or shares[group[0], group[1]] > 0.95
    assert shown_alone(rng.random((2, 20_000))) is None, "a table of all pairs would not fit into memory"


def test_proportional_rows_are_one_sum() -> None:
    rows = np.array([[0.25, 0.75], [-1.0, -3.0], [1.0, 1.0], [0.0, 0.0]])
    distinct, tops, places = directions(rows)
    assert len(distinct) == 3
    np.testing.assert_allclose(tops[:, None] * distinct[places], rows)
