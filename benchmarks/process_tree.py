"""What a process and all its descendants use: processor time and memory, from /proc, and how to halt them."""

import os
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

TICKS = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


def members(root: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(*_GONE):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def freeze(root: int) -> None:
    """Stop all of them: what waits must not compute, whatever threads it has in the background."""
    _signal(members(root), signal.SIGSTOP)


def thaw(root: int) -> None:
    """Let all of them go on, the youngest first."""
    _signal(reversed(members(root)), signal.SIGCONT)


def end(root: int) -> None:
    """Kill all of them, in whatever session they are; halted first, so that none starts another meanwhile."""
    halted = members(root)
    _signal(halted, signal.SIGSTOP)
    _signal({*halted, *members(root)}, signal.SIGKILL)


def cpu_seconds(root: int) -> float:
    """Processor time of all of them, and of their children that ended, since they were started."""
    total = 0
    for pid in members(root):
        with suppress(*_GONE):
            total += sum(map(int, _stat(pid)[11:15]))
    return total / TICKS


def memory(root: int) -> int:
    """Bytes in memory: what each has to itself, and once the largest share that one has in common with others."""
    private, shared = 0, [0]
    for pid in members(root):
        with suppress(*_GONE, PermissionError):
            sizes = _sizes(Path(f"/proc/{pid}/smaps_rollup"))
            own = sizes["Private_Clean"] + sizes["Private_Dirty"]
            private += own
            shared.append(sizes["Rss"] - own)
    return private + max(shared)


def largest_ever(pid: int | str) -> int:
    """The most memory that one process (`self` for this one) had at any time, in bytes."""
    return _sizes(Path(f"/proc/{pid}/status"))["VmHWM"]


class Peak:
    """Samples the memory of a tree while a block of code runs; `bytes` is the largest seen."""

    INTERVAL = 0.05

    def __init__(self, root: int) -> None:
        self._root, self._over = root, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = 0

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, memory(self._root))
            if self._over.wait(self.INTERVAL):
                return


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _sizes(path: Path) -> dict[str, int]:
    fields = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {f[0].rstrip(":"): int(f[1]) * 1024 for f in fields if len(f) == 3 and f[2] == "kB"}
