"""The terminal view, frame after frame."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from fedwcm.watch.follow import Watch
from fedwcm.watch.frame import frame

INTERVAL = 0.5
"""Seconds between frames."""


def show(folders: Sequence[Path], once: bool) -> None:
    """Show the runs in these folders until all are over, or Ctrl-C; `once`, or without a terminal, as they are."""
    console, watch = Console(), Watch(folders)
    if not once and console.is_terminal:
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while not (glance := watch.look()).over:
                live.update(frame(glance, console.width, console.height), refresh=True)
                time.sleep(INTERVAL)
    console.print(frame(watch.look(), console.width, None))
