"""A call in a process of its own: its answer, or how the process ended."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import pytest

from fedwcm.utils.child_process import ChildDiedError, call_in_child, signal_name

from ..reliability.support import needs_fork

pytestmark = needs_fork


def call(function: Callable[..., object], *arguments: object, timeout: float | None = 60.0) -> object:
    return call_in_child(multiprocessing.get_context("fork"), function, *arguments, timeout=timeout)


def test_the_answer_comes_from_another_process() -> None:
    here = os.getpid()
    assert call(lambda x: (x + 1, os.getpid() != here), 1) == (2, True)


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        (signal.SIGRTMIN + 1, f"was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_a_signal_is_named_if_it_has_a_name(number: int, end: str) -> None:
    with pytest.raises(ChildDiedError, match=f"^{end}$"):
        call(lambda: os.kill(os.getpid(), number))


def test_an_exit_is_no_signal() -> None:
    with pytest.raises(ChildDiedError, match=r"^ended with exit status 3$") as caught:
        call(os._exit, 3)
    assert signal_name(caught.value.exit_code) is None


def test_a_call_that_hangs_is_ended() -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(TimeoutError, match=r"^no answer after 0.2 seconds$"):
        call(time.sleep, 60, timeout=0.2)
    assert set(multiprocessing.active_children()) <= before
