"""The driver's side of the protocol: start a contender, let it through the gate, hear how long its round took."""

import json
import os
import re
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.jobs import CACHE, Job
from benchmarks.lineup import Entry
from benchmarks.process_tree import Peak, end, freeze, largest_ever, thaw

PATIENCE = 1800
"""Seconds after which a contender that does not answer has failed."""
SETTLING = 0.2
"""Seconds between waking up and a round: background threads do what they missed before the clock starts."""
LOGS = CACHE / "logs"


class FailedError(RuntimeError):
    """A contender ended or fell silent."""


class Contender:
    """A running contender, which waits at its gate, frozen, but while `run_turn` is called.

    Blocked it computes nothing itself, but Ray, for one, goes on in the background with a tenth of a core.
    """

    def __init__(self, entry: Entry, job: Job, rounds: int, label: str) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.entry = entry
        self._log = LOGS / f"{re.sub(r'[^a-z0-9]+', '-', label.lower())}.log"
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                entry.command(job, rounds),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=_environment(),
                start_new_session=True,
            )
        self._unread = b""
        began = time.perf_counter()
        self._answer()
        self.ready_seconds = time.perf_counter() - began
        freeze(self._process.pid)

    def run_turn(self, rounds: int) -> float:
        """Let it run so many rounds; how long one of them took."""
        thaw(self._process.pid)
        time.sleep(SETTLING)
        seconds = 0.0
        for _ in range(rounds):
            self._let_through()
            seconds += float(self._answer()["seconds"])
        freeze(self._process.pid)
        return seconds / rounds

    def finish(self) -> dict[str, Any]:
        """Play the last round, untimed, while its memory is watched; then what the model has learnt."""
        thaw(self._process.pid)
        before = largest_ever(self._process.pid)
        with Peak(self._process.pid) as peak:
            self._let_through()
            learnt = self._answer()
        self._process.wait(timeout=120)
        return {"memory_bytes": max(peak.bytes, before), "loss": learnt["loss"], "accuracy": learnt["accuracy"]}

    def close(self) -> None:
        """Make sure that it and everything it started is gone, as torchrun's workers, which have own sessions."""
        if self._process.poll() is None:
            end(self._process.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _let_through(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended") from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        until = time.perf_counter() + PATIENCE
        while b"\n" not in self._unread:
            if not select.select([stream], [], [], max(0.0, until - time.perf_counter()))[0]:
                raise self._failure(f"said nothing for {PATIENCE} s")
            read = os.read(stream, 65536)
            if not read:
                raise self._failure("ended")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> FailedError:
        self.close()
        return FailedError(f"{what}: {last_words(self._log)}")


def last_words(log: Path) -> str:
    """The last line of a log that says something, without folders of this machine."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    errors = [line for line in lines if re.search(r"Error|error|killed", line)] or [line for line in lines if line]
    return re.sub(r"(?:/[\w.+-]+)+/", "", errors[-1])[:200] if errors else "no message"


def _environment() -> dict[str, str]:
    """The driver's, but for threads, whose number each contender sets for itself, usage reports and priorities.

    Ray's workers would yield to all other programs, Flower's as well as this package's.
    """
    silent = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    kept = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return kept | silent | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
