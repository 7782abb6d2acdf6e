"""The live view in a terminal."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from fedwcm.dashboard.follow import Watch
from fedwcm.dashboard.frame import frame
from fedwcm.experiment.folder import RunFolder

INTERVAL = 0.5
"""Seconds between frames."""


def watch(folders: str | Path | Sequence[str | Path], *, once: bool = False) -> None:
    """Show runs in the terminal until all have ended or Ctrl-C is pressed.

    Args:
        folders: runs, comparisons, or folders with several of either.
        once: show one frame and return, as without a terminal.
    """
    paths = [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    for path in paths:
        RunFolder(path).refuse_search()
    console, watched = Console(), Watch(paths)
    if not once and console.is_terminal:
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while not (snapshot := watched.look()).ended:
                live.update(frame(snapshot, console.width, console.height), refresh=True)
                time.sleep(INTERVAL)
    console.print(frame(watched.look(), console.width, None))
