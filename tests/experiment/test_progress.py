"""Progress of runs that are started from Python: shown in a notebook, not in scripts, unless it is asked for."""

import sys
from types import SimpleNamespace

import pytest

from fedwcm.experiment.progress import Bar, Lines, Silent, chosen_progress, in_notebook, progress_maker


def kernel(*apps: str) -> SimpleNamespace:
    """A stand-in for the module IPython in a process that runs these applications."""
    return SimpleNamespace(get_ipython=lambda: SimpleNamespace(config=dict.fromkeys(apps)))


@pytest.mark.parametrize(
    ("ipython", "shown"),
    [
        (kernel("IPKernelApp"), True),
        (kernel("TerminalIPythonApp"), False),
        (SimpleNamespace(get_ipython=lambda: None), False),
        (None, False),
    ],
)
def test_progress_shows_by_default_in_a_notebook_only(
    ipython: object, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert in_notebook() is shown
    assert isinstance(chosen_progress(None), Bar if shown else Silent)
    assert (progress_maker(None) is None) is not shown


def test_a_caller_may_choose_otherwise() -> None:
    own = Silent()
    assert chosen_progress(own) is own
    assert progress_maker(Lines) is Lines
    assert isinstance(chosen_progress(True), Bar if sys.stderr.isatty() else Lines)
    assert progress_maker(False) is None
