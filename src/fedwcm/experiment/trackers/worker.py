"""A tracker on a thread of its own: one that fails or hangs costs the run a warning, and nothing else."""

import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from threading import Event, Thread

from fedwcm.experiment.trackers.protocol import Tracker

PATIENCE = 60.0
"""Seconds that one call may take before the tracker is taken to hang."""

MOST_WAITING = 1000
"""Calls that may wait for a tracker that is slower than the run; beyond that, the run waits for it."""

POLL = 0.05
"""Seconds between two looks at whether the tracker has failed, where the run waits for it."""

Call = Callable[[Tracker], None]


class TrackerWarning(UserWarning):
    """A tracker failed or hangs and is switched off; the run continues."""


class TrackerThread:
    """Calls a tracker in order, on a thread that the process does not wait for at its end.

    All warnings are given by the run's own thread: at the next call, or at the end.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._waiting: Queue[tuple[Call, Event]] = Queue(MOST_WAITING)
        self._called_at: float | None = None
        self._error: Exception | None = None
        self._is_off = False
        Thread(target=self._work, name=f"tracker {tracker.name}", daemon=True).start()

    def tell(self, call: Call) -> Event:
        """Let the tracker be called, without waiting for it unless very many calls wait already."""
        done = Event()
        while self._is_alive():
            with suppress(Full):
                self._waiting.put((call, done), timeout=POLL)
                break
        return done

    def ask(self, call: Call) -> None:
        """Let the tracker be called, and wait for it and all calls before, as long as it does not hang."""
        done = self.tell(call)
        while not done.wait(POLL) and self._is_alive():
            pass
        self._is_alive()  # warns of a failure in this very call

    def close(self) -> None:
        """Close the tracker, and end the thread."""
        self.ask(lambda tracker: tracker.close())
        self._is_off = True
        with suppress(Full):
            self._waiting.put_nowait((lambda _: None, Event()))  # wakes the thread, which then ends

    def _work(self) -> None:
        while not self._is_off:
            call, done = self._waiting.get()
            self._called_at = time.monotonic()
            try:
                call(self._tracker)
            except Exception as error:
                self._error = error
                with suppress(Exception):
                    self._tracker.close()
                return
            finally:
                self._called_at = None
                done.set()

    def _is_alive(self) -> bool:
        """Whether the tracker can be called; warns once if not."""
        if self._is_off:
            return False
        called_at, error = self._called_at, self._error
        if error is not None:
            self._switch_off(f"failed and is switched off, the run continues: {type(error).__name__}: {error}")
        elif called_at is not None and time.monotonic() - called_at > PATIENCE:
            self._switch_off(
                f"hangs: it has not answered for {PATIENCE:g} s. It is switched off, the run continues; "
                "metrics.jsonl has every round"
            )
        return not self._is_off

    def _switch_off(self, what: str) -> None:
        self._is_off = True
        warnings.warn(f"the tracker {self._tracker.name!r} {what}", TrackerWarning, stacklevel=5)
