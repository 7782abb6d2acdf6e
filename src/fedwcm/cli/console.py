"""Tables in the terminal: fitted to its width; in a file or pipe as wide as they are."""

import sys

from rich.console import Console

UNLIMITED = 10_000


def console() -> Console:
    """Standard output, whatever it is at the moment."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else UNLIMITED, highlight=False)
