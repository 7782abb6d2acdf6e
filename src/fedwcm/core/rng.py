"""Randomness has an address, never a call order.

Every draw comes from a counter-based generator placed at `(seed, purpose, round, client)`. Whoever asks for
an address, in whatever order and in whichever process, sees the same numbers: that is what makes all engines
agree and a resumed run equal to one that was never stopped.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for. Values are part of the seed contract: never renumber."""

    MODEL = 0
    LONG_TAIL = 1
    PARTITION = 2
    VALIDATION = 3
    COHORT = 4
    ANSWERS = 5
    BATCHES = 6
    AUGMENT = 7
    LOSS = 8
    SERVER = 9
    DROPOUT_LAYERS = 10
    SYNTHETIC_CLASSES = 11
    SYNTHETIC_CLIENT = 12


def generator(seed: int, purpose: Purpose, round_: int = 0, client: int = 0) -> np.random.Generator:
    """The generator at this address: 2⁶⁴ blocks of numbers that no other address touches."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, int(purpose), round_, client]))


def model_seed(seed: int) -> int:
    """What a model's initial weights are drawn from, wherever the model is built."""
    return int(generator(seed, Purpose.MODEL).integers(2**63))
