"""The time spent in each phase of a run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """The seconds spent in each phase since the last call of `read`."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of this block to the phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - start

    def read(self) -> dict[str, float]:
        """Return the seconds spent in each phase, and reset them to 0."""
        spent, self._spent = self._spent, {}
        return spent
