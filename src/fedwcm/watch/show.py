"""The live view in a terminal."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from fedwcm.experiment.folder import RunFolder
from fedwcm.watch.follow import Watch
from fedwcm.watch.frame import frame

INTERVAL = 0.5
"""Seconds between frames."""


def show(folders: Sequence[Path], once: bool) -> None:
    """Show the runs until all have ended or Ctrl-C is pressed; one frame with `once`, or without a terminal."""
    for folder in folders:
        RunFolder(folder).refuse_search()
    console, watch = Console(), Watch(folders)
    if not once and console.is_terminal:
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while not (snapshot := watch.look()).ended:
                live.update(frame(snapshot, console.width, console.height), refresh=True)
                time.sleep(INTERVAL)
    console.print(frame(watch.look(), console.width, None))
