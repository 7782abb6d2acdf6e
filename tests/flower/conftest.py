"""No test waits: the server's clock goes on by itself whenever it sleeps."""

from collections.abc import Iterator

import pytest

from .wire import CLOCK


@pytest.fixture(autouse=True, scope="module")
def no_waiting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedwcm.flower.server.exchange.time", CLOCK)
        patch.setattr("fedwcm.flower.server.directory.time", CLOCK)
        yield
