"""What the package logs, printed while a command runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def log_on_stderr(quiet: bool) -> Iterator[None]:
    """Print what is logged to standard error, each sentence once; warnings only if `quiet`."""
    log, handler = logging.getLogger("fedwcm"), logging.StreamHandler()
    handler.addFilter(_Once())
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Once(logging.Filter):
    """Lets a sentence pass once: the runs of a comparison mostly log the same."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_new = text not in self._said
        self._said.add(text)
        return is_new
