"""A contender's side of the protocol: before every round, say that one is ready and wait to be let through.

The driver lets one contender through at a time, so that rounds of all of them are played alternately on the same
machine. A waiting contender is blocked in a read and computes nothing. Only the standard library is used: this
runs in the environment of every peer.
"""

import json
import os
import sys
import time


class Gate:
    """Speaks with the driver over what were standard input and output; anything else printed goes to the log."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # libraries print what they like: it must not get into the protocol
        self._began: float | None = None

    def wait(self) -> None:
        """The last round is over; block until the driver lets the next one begin."""
        ended = time.perf_counter()
        self._say(seconds=None if self._began is None else ended - self._began)
        if not sys.stdin.readline():
            os._exit(1)  # the driver is gone, and with it the reason to go on
        self._began = time.perf_counter()

    def finish(self, *, loss: float, accuracy: float) -> None:
        """All rounds are played; this is how well the model does on the training data."""
        self._say(seconds=None, loss=loss, accuracy=accuracy)

    def _say(self, **answer: float | None) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()
