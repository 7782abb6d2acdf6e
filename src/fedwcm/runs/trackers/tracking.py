"""All trackers of a run behind one object. A tracker that fails never ends a run."""

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
    """A tracker failed and is switched off; the run continues."""


def check_trackers(names: Sequence[str], folder: Path | None) -> None:
    """Raise an error for an unknown tracker, a missing package or a run without a folder."""
    for name in names:
        package = TRACKERS[name].package
        if package is not None and find_spec(package) is None:
            raise ImportError(f"the tracker {name!r} needs {package}: pip install 'fedwcm[track]'")
        if folder is None:
            raise ValueError(f"run.track = {name!r} needs a folder to write to: name one (out)")


class Tracking:
    """Calls all trackers of a run; one that raises is reported in a warning and switched off."""

    def __init__(self, names: Sequence[str]) -> None:
        self._trackers = [TRACKERS[name]() for name in names]

    def start(self, folder: Path, settings: Settings, done: int) -> None:
        self._call(lambda tracker: tracker.start(TrackedRun(folder, settings, done)))

    def log(self, record: RoundRecord) -> None:
        """Log an evaluated round."""
        scalars = scalars_of({key: value for key, value in record.to_json().items() if key != "round"})
        self._call(lambda tracker: tracker.log(record.round, scalars))

    def finish(self, summary: Summary) -> None:
        self._call(lambda tracker: tracker.finish(summary))

    def close(self) -> None:
        self._call(lambda tracker: tracker.close())

    def _call(self, action: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                action(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                why = f"{type(error).__name__}: {error}"
                message = f"the tracker {tracker.name!r} failed and is switched off, the run continues: {why}"
                warnings.warn(message, TrackerWarning, stacklevel=3)
                with suppress(Exception):
                    tracker.close()
