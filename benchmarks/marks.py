"""Clocks that are read after every round, from which follows what a round takes."""

from collections.abc import Callable
from itertools import pairwise


class Marks:
    """A progress report that reads some clocks after every round."""

    def __init__(self, *clocks: Callable[[], float]) -> None:
        self._clocks = clocks
        self._readings: list[list[float]] = []

    def start(self, title: str, rounds: int, done: int) -> None:
        pass

    def round(self, number: int, record: object) -> None:
        self._readings.append([clock() for clock in self._clocks])

    def close(self) -> None:
        pass

    def steps(self, warmup: int) -> list[list[float]]:
        """Return what each round added to each clock, without the first rounds, which warm up."""
        rounds = list(pairwise(self._readings[warmup - 1 :]))
        return [[after[i] - before[i] for before, after in rounds] for i in range(len(self._clocks))]
