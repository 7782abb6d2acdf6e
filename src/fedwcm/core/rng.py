"""Random numbers by address instead of call order.

Every draw comes from a counter-based generator positioned at `(seed, purpose, round, client)`, or at one of the
client's local steps. An address gives
the same numbers in any order of calls and in any process. This is why all backends agree and why a resumed run
equals an uninterrupted one.
"""

from enum import IntEnum
from typing import Any

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
    EVALUATION_COHORT = 13
    NOISE = 14
    PROBE_AUGMENT = 15
    METHOD = 16
    VIEWS = 17
    STEP = 18
    SPEED = 19
    SERVER_DATA = 20


def generator(seed: int, purpose: Purpose, round_: int = 0, client: int = 0, step: int = 0) -> np.random.Generator:
    """Return the generator at this address; its blocks of numbers, 2³² a step, overlap with no other address."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[step << 32, int(purpose), round_, client]))


class ClientGenerators:
    """The generators of one purpose and round: a single object that moves from client to client.

    Moving it takes a tenth of the time that making another takes.
    """

    def __init__(self, seed: int, purpose: Purpose, round_: int) -> None:
        self._generator = generator(seed, purpose, round_)
        self._bits = self._generator.bit_generator
        self._start: Any = self._bits.state

    def at(self, client: int) -> np.random.Generator:
        """Return the generator at this client's address, valid until the next call."""
        self._start["state"]["counter"][3] = client
        self._bits.state = self._start
        return self._generator


def model_seed(seed: int) -> int:
    """Return the seed of a model's initial weights, the same wherever the model is built."""
    return int(generator(seed, Purpose.MODEL).integers(2**63))
