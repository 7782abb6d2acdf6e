"""What can go wrong in worker processes, and what to do about it. Imports no torch."""

import signal

OUT_OF_MEMORY = (
    "Use fewer processes (--set run.workers=1, or --backend sequential), smaller batches, or a smaller model"
)
CRASHED = (
    "It crashed in native code: `fedwcm doctor` looks for faults of this machine; or try --backend sequential"
)
CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"}


class WorkerError(RuntimeError):
    """Clients could not be trained in a worker process."""


class WorkerDiedError(WorkerError):
    """A worker process ended without an answer."""

    def __init__(self, exit_code: int | None) -> None:
        self._signal = _signal_name(exit_code)
        super().__init__(
            f"was killed by {self._signal}" if self._signal else f"ended with exit status {exit_code}"
        )

    @property
    def advice(self) -> str:
        """What to do about it if it happens again and again."""
        if self._signal == "SIGKILL":
            return f"The system kills a process when memory runs out. {OUT_OF_MEMORY}"
        return CRASHED if self._signal in CRASHES else "With --backend sequential everything runs in one process"


def _signal_name(exit_code: int | None) -> str | None:
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-exit_code}"
