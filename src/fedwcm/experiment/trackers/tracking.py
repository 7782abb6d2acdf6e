"""All trackers of a run behind one object, each on a thread: one that fails or hangs never ends a run."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

from fedwcm.config.options import NamedObject
from fedwcm.config.settings import Settings
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.records import RoundRecord, Summary
from fedwcm.experiment.trackers import TRACKERS, TrackedRun, Tracker, scalars_of


def check_trackers(names: Sequence[str], folder: Path | None) -> None:
    """Raise an error for an unknown tracker, a missing package or a run without a folder."""
    for name in names:
        package = None if isinstance(name, NamedObject) else TRACKERS[name].package
        if package is not None and find_spec(package) is None:
            raise ImportError(f"the tracker {name!r} needs {package}: pip install 'fedwcm[track]'")
        if folder is None:
            raise ValueError(f"run.track = {name!r} needs a folder to write to: name one (out)")


def views(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Return how to look at what each tracker has of the run in a folder, where it says so."""
    texts = {name: _tracker(name).view(folder) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def _tracker(name: str) -> Tracker:
    """Return the tracker of a name, or the one that was given as an object."""
    tracker: Tracker = name.value if isinstance(name, NamedObject) else TRACKERS[name]()
    return tracker


class Tracking:
    """Calls all trackers of a run, each on a thread of its own."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._threads: list[TrackerThread] = []
        self._folder: Path | None = None

    def start(self, folder: Path, settings: Settings, done: int) -> None:
        """Start the trackers, one after the other: libraries imported at once may disturb each other."""
        run, self._folder = TrackedRun(folder, settings, done), folder
        for name in self._names:
            self._threads.append(TrackerThread(_tracker(name)))
            self._threads[-1].ask(lambda tracker: tracker.start(run))

    def log(self, record: RoundRecord) -> None:
        """Log an evaluated round."""
        if not self._threads:
            return
        values = {key: value for key, value in record.to_json().items() if key != "round"}
        scalars = scalars_of(values, self._classes)
        for thread in self._threads:
            thread.tell(lambda tracker: tracker.log(record.round, scalars))

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """The names of the classes; none if nobody has said who holds what before the first evaluation."""
        split = RunFolder(self._folder).partition() if self._folder else None
        return split.classes if split else ()

    def finish(self, summary: Summary) -> None:
        for thread in self._threads:
            thread.tell(lambda tracker: tracker.finish(summary))

    def close(self) -> None:
        """Wait until the trackers have written everything, as long as they do not hang, and close them."""
        for thread in self._threads:
            thread.close()


PATIENCE = 60.0
"""Seconds that one call may take before the tracker is taken to hang."""

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
        self._waiting: SimpleQueue[tuple[Call, Event]] = SimpleQueue()
        self._called_at: float | None = None
        self._error: Exception | None = None
        self._is_off = False
        Thread(target=self._work, name=f"tracker {tracker.name}", daemon=True).start()

    def tell(self, call: Call) -> Event:
        """Let the tracker be called, without waiting for it."""
        done = Event()
        if self._is_alive():
            self._waiting.put((call, done))
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
        self._waiting.put((lambda _: None, Event()))  # wakes the thread, which then ends

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
        """Return whether the tracker can be called; warns once if not."""
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
