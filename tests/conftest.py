"""What all tests share: one thread, property tests without a clock, and a word about skipped browser tests."""

import pytest
import torch
from hypothesis import settings

# The models here are so small that more threads would only add waiting, and change the order of sums.
torch.set_num_threads(1)

# A busy machine must not fail a law.
settings.register_profile("steady", deadline=None, max_examples=50)
settings.load_profile("steady")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests had no browser, and how to give them one; skipped tests are easily overlooked."""
    from tests.reports.browser import INSTALL, INSTALL_PACKAGES

    reasons = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    for command in (INSTALL, INSTALL_PACKAGES):
        if number := sum(command in reason for reason in reasons):
            terminalreporter.write_line(f"{number} browser tests were skipped; to enable them: {command}")
