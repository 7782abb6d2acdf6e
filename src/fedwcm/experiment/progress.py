"""Progress of a run for the user: a bar on a terminal, plain lines elsewhere, or nothing."""

import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Protocol

from fedwcm.experiment.records import RoundRecord
from fedwcm.utils.text import duration


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
    """A progress bar with the latest accuracy and the time left: a widget in a notebook, a line elsewhere."""

    def start(self, title: str, rounds: int, done: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a notebook without ipywidgets: its bar is a line of text
            from tqdm.auto import tqdm
        # tqdm's notebook widget ignores this variable
        disabled = os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        self._bar = tqdm(
            total=rounds, initial=done, desc=title, unit="round", file=sys.stderr, leave=True, disable=disabled
        )

    def round(self, number: int, record: RoundRecord) -> None:
        if record.test_accuracy is not None:
            self._bar.set_postfix_str(f"accuracy {record.test_accuracy:.3f}", refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


class Lines(Silent):
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
        print(f"{self._title}: round {number}/{self._rounds}, {accuracy}, {duration(left)} left", file=sys.stderr)


def chosen_progress(progress: Progress | bool | None) -> Progress:
    """Return the progress that a caller chose: an object, whether to show any, or None: in a notebook only."""
    if progress is None or isinstance(progress, bool):
        make = progress_maker(progress)
        return Silent() if make is None else make()
    return progress


def progress_maker(progress: Callable[[], Progress] | bool | None) -> Callable[[], Progress] | None:
    """Return the same for several runs, each with a progress of its own; None to show nothing.

    What suits standard error is shown: a bar on a terminal and in a notebook, lines elsewhere.
    """
    shown = in_notebook() if progress is None else progress
    if isinstance(shown, bool):
        return (Bar if in_notebook() or sys.stderr.isatty() else Lines) if shown else None
    return shown


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, such as Jupyter's."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
