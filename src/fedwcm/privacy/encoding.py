"""Encode counts as slots of a ciphertext, so that their sums are exact.

BFV adds each slot modulo t = 1,032,193, so a class total above that would wrap. A count is therefore sent as
five digits in base 64, each in its own slot. A sum of N contributors does not wrap in any slot as long as
N · 63 < t, that is for N ≤ 16,384: the bound on the contributors of one key holder. Five digits hold counts up
to 2³⁰ − 1, so totals of 10⁹ are exact, and so are sums far above.

    slot 0             1: its sum is the number of contributors
    slot 1 + 5c + d    digit d of class c, the lowest first

One ciphertext has 4,096 slots and so holds 819 classes; more classes take more ciphertexts, each with its own
slot 0.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedwcm.privacy.wire import ProtocolError

Ints = NDArray[np.int64]

SLOTS = 4096
PLAIN_MODULUS = 1_032_193
BASE = 64
DIGITS = 5
CLASSES_PER_CIPHERTEXT = (SLOTS - 1) // DIGITS
MAX_COUNT = BASE**DIGITS - 1
MAX_CONTRIBUTORS = (PLAIN_MODULUS - 1) // (BASE - 1)

_WEIGHTS = BASE ** np.arange(DIGITS, dtype=np.int64)


def checked_counts(counts: ArrayLike) -> Ints:
    """Return one client's class counts as integers; ValueError if one cannot be encoded."""
    values = np.asarray(counts)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"counts must be one number per class, not an array of shape {values.shape}")
    if values.dtype.kind not in "iuf":
        raise ValueError(f"counts must be numbers, not {values.dtype}")
    bad = ~((values >= 0) & (values <= MAX_COUNT) & (values == np.floor(values)))
    if bad.any():
        label = int(np.argmax(bad))
        raise ValueError(
            f"counts must be whole numbers from 0 to {MAX_COUNT:,}; class {label} has {values[label]}"
        )
    return values.astype(np.int64)


def ciphertexts_needed(classes: int) -> int:
    """Return the number of ciphertexts for this many classes."""
    return -(-classes // CLASSES_PER_CIPHERTEXT)


def slots_used(classes: int) -> tuple[int, ...]:
    """Return the number of slots that each ciphertext uses for this many classes."""
    starts = range(0, classes, CLASSES_PER_CIPHERTEXT)
    return tuple(1 + DIGITS * min(CLASSES_PER_CIPHERTEXT, classes - start) for start in starts)


def to_slots(counts: Ints) -> tuple[Ints, ...]:
    """Return the slots of each ciphertext of one contributor."""
    digits = counts[:, None] // _WEIGHTS % BASE
    parts = np.split(digits, range(CLASSES_PER_CIPHERTEXT, len(counts), CLASSES_PER_CIPHERTEXT))
    return tuple(np.concatenate(([1], part.ravel())) for part in parts)


def from_slots(sums: Sequence[Ints], contributors: int) -> Ints:
    """Return the class totals from the decrypted sums of this many contributors.

    Raises:
        ProtocolError: the slots cannot be such a sum; something else was added, or under another key.
    """
    for slots in sums:
        if slots[0] != contributors or slots.max() > contributors * (BASE - 1):
            raise ProtocolError(f"the slots are not a sum of {contributors:,} contributions")
    digits = np.concatenate([slots[1:] for slots in sums]).reshape(-1, DIGITS)
    totals: Ints = digits @ _WEIGHTS
    return totals
