"""What a measurement was made on."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.environments import ROOT
from benchmarks.process_tree import TICKS, cpu_seconds

WRITTEN = ("benchmarks/results", "docs/performance.md")


def describe() -> dict[str, object]:
    """Processor, memory, versions, and how busy the machine is right now."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """Return the commit that is measured, with a plus sign if files were edited; empty outside a checkout.

    What a benchmark writes, its results and the page that shows them, is no edit.
    """
    edits = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *(f":!{path}" for path in WRITTEN))
    return _git("rev-parse", "--short=7", "HEAD") + ("+" if edits else "")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


class OtherLoad:
    """How many cores everything outside this benchmark keeps busy, on average, since this object was made."""

    def __init__(self) -> None:
        self._began, self._others = time.perf_counter(), _others_seconds()

    def cores(self) -> float:
        used = _others_seconds() - self._others
        return max(0.0, used / (time.perf_counter() - self._began))


def _others_seconds() -> float:
    """Processor time of the whole machine but for this process and its descendants."""
    user, nice, system, _idle, _waiting, interrupts, soft = _field("/proc/stat", "cpu ", " ").split()[:7]
    return sum(map(int, (user, nice, system, interrupts, soft))) / TICKS - cpu_seconds(os.getpid())


def _field(path: str, name: str, separator: str = ":") -> str:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next((line.partition(separator)[2].strip() for line in lines if line.startswith(name)), "unknown")
