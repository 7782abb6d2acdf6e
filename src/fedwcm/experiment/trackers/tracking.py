"""All trackers of a run behind one object. A tracker that fails or hangs never ends a run."""

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from fedwcm.config.settings import Settings
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.live import partition_so_far
from fedwcm.experiment.records import RoundRecord, Summary
from fedwcm.experiment.scalars import scalars_of
from fedwcm.experiment.trackers import TRACKERS
from fedwcm.experiment.trackers.protocol import TrackedRun
from fedwcm.experiment.trackers.worker import TrackerThread


def check_trackers(names: Sequence[str], folder: Path | None) -> None:
    """Raise an error for an unknown tracker, a missing package or a run without a folder."""
    for name in names:
        package = TRACKERS[name].package
        if package is not None and find_spec(package) is None:
            raise ImportError(f"the tracker {name!r} needs {package}: pip install 'fedwcm[track]'")
        if folder is None:
            raise ValueError(f"run.track = {name!r} needs a folder to write to: name one (out)")


def views(names: Sequence[str], folder: Path) -> dict[str, str]:
    """How to look at what each tracker has of the run in a folder, where it says so."""
    said = {name: TRACKERS[name]().view(folder) for name in names}
    return {name: text for name, text in said.items() if text is not None}


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
            self._threads.append(TrackerThread(TRACKERS[name]()))
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
        split = partition_so_far(RunFolder(self._folder)) if self._folder else None
        return split.classes if split else ()

    def finish(self, summary: Summary) -> None:
        for thread in self._threads:
            thread.tell(lambda tracker: tracker.finish(summary))

    def close(self) -> None:
        """Wait until the trackers have written everything, as long as they do not hang, and close them."""
        for thread in self._threads:
            thread.close()
