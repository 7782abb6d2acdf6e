"""No test waits: the server's clock goes on by itself whenever it sleeps."""

import pytest

from .wire import CLOCK


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwcm.flower.server.exchange.time", CLOCK)
    monkeypatch.setattr("fedwcm.flower.server.directory.time", CLOCK)
