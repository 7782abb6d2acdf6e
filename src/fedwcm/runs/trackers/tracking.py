"""The trackers of a run, as one. What they do is a courtesy: a tracker that fails never ends a run."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from fedwcm.config.schema import Settings
from fedwcm.runs.records import RoundRecord, Summary
from fedwcm.runs.trackers import TRACKERS
from fedwcm.runs.trackers.protocol import TrackedRun, Tracker, scalars_of


class TrackerWarning(UserWarning):
    """A tracker failed and is switched off; the run goes on."""


def check_trackers(names: Sequence[str], folder: Path | None) -> None:
    """Raise, before anything is loaded, for an unknown tracker, a missing package or a run without a folder."""
    for name in names:
        package = TRACKERS[name].package
        if package is not None and find_spec(package) is None:
            raise ImportError(f"the tracker {name!r} needs {package}: pip install 'fedwcm[track]'")
        if folder is None:
            raise ValueError(f"run.track = {name!r} needs a folder to write to: name one (out)")


class Tracking:
    """Tells all trackers of a run; one that raises gives a warning and hears no more."""

    def __init__(self, names: Sequence[str]) -> None:
        self._trackers = [TRACKERS[name]() for name in names]

    def start(self, folder: Path, settings: Settings, done: int) -> None:
        self._tell(lambda tracker: tracker.start(TrackedRun(folder, settings, done)))

    def log(self, record: RoundRecord) -> None:
        """Log an evaluated round."""
        scalars = scalars_of({key: value for key, value in record.to_json().items() if key != "round"})
        self._tell(lambda tracker: tracker.log(record.round, scalars))

    def finish(self, summary: Summary) -> None:
        self._tell(lambda tracker: tracker.finish(summary))

    def close(self) -> None:
        self._tell(lambda tracker: tracker.close())

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                what(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                why = f"{type(error).__name__}: {error}"
                message = f"the tracker {tracker.name!r} failed and is switched off, the run goes on: {why}"
                warnings.warn(message, TrackerWarning, stacklevel=3)
                with suppress(Exception):
                    tracker.close()
