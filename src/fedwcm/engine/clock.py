"""Where the time of a run goes: seconds a phase."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Adds up the seconds spent in each phase since it was last read."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of this block for the phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - began

    def read(self) -> dict[str, float]:
        """Seconds of each phase, which then start from 0 again."""
        spent, self._spent = self._spent, {}
        return spent
