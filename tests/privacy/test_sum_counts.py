"""The totals come back exact, whatever the number of clients, classes and key holders."""

from collections.abc import Mapping

import numpy as np
import pytest

from fedwcm.privacy import MAX_CONTRIBUTORS, MAX_COUNT, Receive, Server, loopback, sum_counts
from fedwcm.privacy.bfv import PublicContext, SecretKey
from fedwcm.privacy.encoding import PLAIN_MODULUS, from_slots, to_slots
from fedwcm.privacy.messages import Contribution, CountRequest, Decrypted, DecryptRequest, size_limit
from fedwcm.privacy.wire import Message
from tests.privacy.support import Replies, clients_of, needs_tenseal, run, some_counts, total_of

pytestmark = needs_tenseal


def test_three_clients_work_out_of_the_box() -> None:
    result = sum_counts([[5, 0, 2], [1, 1, 1], [0, 0, 9]])
    assert result.totals.tolist() == [6, 1, 12]
    assert result.totals.dtype == np.int64
    assert result.contributors == ("0", "1", "2")
    assert result.left_out == ()
    assert result.refused == ()


@pytest.mark.parametrize("key_holders", [1, 2, 4])
def test_totals_are_those_of_the_plain_sum_for_any_number_of_key_holders(key_holders: int) -> None:
    counts = some_counts(13)
    result = sum_counts(counts, key_holders=key_holders, rng=np.random.default_rng(1))
    assert result.totals.tolist() == total_of(counts)
    assert result.contributors == tuple(counts)
    assert len(set(result.key_holders)) == key_holders


def test_a_total_of_a_thousand_million_and_sums_far_above_the_modulus_are_exact() -> None:
    counts = [[10**9 - 2, MAX_COUNT, 0], [1, MAX_COUNT, PLAIN_MODULUS], [1, MAX_COUNT, PLAIN_MODULUS - 1]]
    assert sum_counts(counts).totals.tolist() == [10**9, 3 * MAX_COUNT, 2 * PLAIN_MODULUS - 1]


@pytest.mark.parametrize("classes", [1, 819, 820, 2000])
def test_any_number_of_classes_comes_back(classes: int) -> None:
    counts = some_counts(3, classes, top=MAX_COUNT)
    assert sum_counts(counts).totals.tolist() == total_of(counts)


def test_the_most_contributors_of_a_key_holder_with_the_largest_counts_open_exactly() -> None:
    """Doubling one ciphertext is the worst case for the noise: it adds up in step."""
    secret, public = SecretKey.generate()
    context = PublicContext(public)
    (slots,) = to_slots(np.full(819, MAX_COUNT, dtype=np.int64))
    total = context.add(None, context.encrypt(slots), len(slots))
    for _ in range(MAX_CONTRIBUTORS.bit_length() - 1):
        total = total + total
    opened = SecretKey(secret).decrypt(total.serialize(), len(slots))
    assert from_slots([opened], MAX_CONTRIBUTORS).tolist() == [MAX_CONTRIBUTORS * MAX_COUNT] * 819


@pytest.mark.slow
def test_ten_thousand_contributors_under_one_key() -> None:
    counts = some_counts(10_000, classes=10)
    honest = loopback(clients_of(counts))

    def deliver(requests: Mapping[str, bytes], receive: Receive) -> None:
        """Reads the public key once for all contributors, which is most of the time that they would take."""
        request = Message.from_bytes(next(iter(requests.values())), size_limit(10))
        if not isinstance(request, CountRequest):
            honest(requests, receive)
            return
        context = PublicContext(request.context)
        for name in requests:
            ciphertexts = tuple(context.encrypt(slots) for slots in to_slots(counts[name]))
            receive(name, Contribution(request.session, name, request.key_id, ciphertexts).to_bytes())

    result = Server(tuple(counts), 10).run(deliver)
    assert result.totals.tolist() == total_of(counts)
    assert len(result.contributors) == 10_000
    assert len(result.key_holders) == 1


def test_the_generator_decides_who_holds_the_keys_and_nothing_else() -> None:
    counts = some_counts(9)
    runs = [sum_counts(counts, key_holders=2, rng=np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert runs[0].key_holders == runs[1].key_holders != runs[2].key_holders
    assert len({tuple(run.totals.tolist()) for run in runs}) == 1


@pytest.mark.parametrize("seed", range(3))
def test_with_several_key_holders_none_opens_the_sum_it_is_part_of(seed: int) -> None:
    counts = {str(k): np.eye(6, dtype=np.int64)[k] for k in range(6)}
    opened: dict[str, Decrypted] = {}

    def watch(name: str, request: Message, reply: bytes) -> Replies:
        if isinstance(request, DecryptRequest):
            opened[name] = Decrypted.from_bytes(reply, len(reply))
        return [(name, reply)]

    run(counts, watch, key_holders=2, seed=seed)
    assert len(opened) == 2
    assert all(reply.totals[int(name)] == 0 for name, reply in opened.items())


def test_bytes_are_those_of_the_keys_and_ciphertexts_that_travelled() -> None:
    result = sum_counts(some_counts(10))
    ciphertext, context = 88_600, 134_200
    assert result.bytes_up == pytest.approx(10 * ciphertext + context, rel=0.01)
    assert result.bytes_down == pytest.approx(10 * context + ciphertext, rel=0.01)
    assert result.seconds > 0
