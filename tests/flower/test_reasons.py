"""What the log says of clients that are not there, and of errors on a client."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedwcm.core.types import Fault, LeftOut
from fedwcm.flower.server.directory import ClientDirectory
from fedwcm.flower.untrusted import UnusableError, refuse_error


def test_every_reason_of_the_nodes_that_are_not_used_is_said_once() -> None:
    directory: Any = object.__new__(ClientDirectory)
    directory._refused = {}
    assert directory._refusals == ""
    reasons = ("it demands encryption", "its labels are from 1 to 7", "it demands encryption")
    directory._refused = {node: LeftOut(Fault.REFUSED, reason) for node, reason in enumerate(reasons)}
    said = "; nodes that are connected and not used: 3, since it demands encryption; or its labels are from 1 to 7"
    assert directory._refusals == said


@pytest.mark.parametrize(
    "line", ["<class 'ValueError'>:<'no row of 'a''>", "Traceback\nno row of 'a''>", "no row of 'a'"]
)
def test_an_error_of_a_client_is_its_own_words(line: str) -> None:
    reply: Any = SimpleNamespace(has_error=lambda: True, error=SimpleNamespace(code=2, reason=line))
    with pytest.raises(UnusableError, match=r"^error 2: no row of 'a'$"):
        refuse_error(reply)
