"""A clock that goes on by itself whenever the server sleeps, so that no test waits; and a site for deployments."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwcm.flower.app.init import flower_init

from .processes import Site, running_site
from .wire import CLOCK


@pytest.fixture(autouse=True, scope="module")
def no_waiting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedwcm.flower.server.exchange.time", CLOCK)
        patch.setattr("fedwcm.flower.server.directory.time", CLOCK)
        yield


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The app in a folder, and Flower's programs, which end with the test; `param`: whether with TLS and keys."""
    flower_init(tmp_path / "app")
    with running_site(tmp_path, secure=getattr(request, "param", True)) as site:
        yield site
