"""Progress of a run for the user: a bar on a terminal, plain lines elsewhere, or nothing."""

import sys
import time
from typing import Protocol

from tqdm import tqdm

from fedwcm.runs.records import RoundRecord


class Progress(Protocol):
    """Called for every round; `record` has a test accuracy if the round was evaluated."""

    def start(self, title: str, rounds: int, done: int) -> None: ...

    def round(self, number: int, record: RoundRecord) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def start(self, title: str, rounds: int, done: int) -> None:
        pass

    def round(self, number: int, record: RoundRecord) -> None:
        pass

    def close(self) -> None:
        pass


class Bar:
    """A progress bar with the latest accuracy and the time left."""

    def start(self, title: str, rounds: int, done: int) -> None:
        self._bar = tqdm(total=rounds, initial=done, desc=title, unit="round", file=sys.stderr, leave=True)

    def round(self, number: int, record: RoundRecord) -> None:
        if record.test_accuracy is not None:
            self._bar.set_postfix_str(f"accuracy {record.test_accuracy:.3f}", refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


class Lines:
    """Plain lines: at most one every few seconds, and one for the last round."""

    INTERVAL = 5.0

    def start(self, title: str, rounds: int, done: int) -> None:
        self._title, self._rounds, self._done = title, rounds, done
        self._began = self._last = time.perf_counter()

    def round(self, number: int, record: RoundRecord) -> None:
        now = time.perf_counter()
        due = now - self._last >= self.INTERVAL or number == self._rounds
        if record.test_accuracy is None or not due:
            return
        self._last = now
        left = (now - self._began) / (number - self._done) * (self._rounds - number)
        accuracy = f"accuracy {record.test_accuracy:.4f}"
        print(f"{self._title}: round {number}/{self._rounds}, {accuracy}, {left:.0f} s left", file=sys.stderr)

    def close(self) -> None:
        pass


def progress_for(quiet: bool) -> Progress:
    """The progress that suits standard error: a bar on a terminal, lines elsewhere."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()
