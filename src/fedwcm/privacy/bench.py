"""Measure the cost of the protocol, next to the figures of the paper's Appendix C."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedwcm.privacy.bfv import PublicContext, SecretKey
from fedwcm.privacy.encoding import to_slots
from fedwcm.privacy.server import sum_counts

PAPER_BYTES = {10: (136, 88_556), 20: (216, 88_554), 50: (456, 88_631), 100: (856, 88_548)}
"""By the number of classes, a plaintext and a ciphertext."""
PAPER_SECONDS_PER_CLIENT = 0.0017
PAPER_TOTAL_MB = 13.05
PAPER_CLIENTS = 100

_REPEATS = 30
_SAMPLES_PER_CLASS = 500
_SEED = 0


@dataclass(frozen=True)
class BenchmarkRow:
    """Costs for one number of classes: of one client's message, and of a session. Seconds are CPU time."""

    classes: int
    clients: int
    plaintext_bytes: int
    ciphertext_bytes: int
    seconds_per_client: float
    bytes_up: int
    bytes_down: int
    seconds: float

    def scale_to(self, clients: int) -> "BenchmarkRow":
        """Return the costs scaled to another number of clients: bytes and seconds are proportional to it."""
        factor = clients / self.clients
        up, down = round(self.bytes_up * factor), round(self.bytes_down * factor)
        return replace(self, clients=clients, bytes_up=up, bytes_down=down, seconds=self.seconds * factor)


def benchmark(classes: Sequence[int] = (10, 20, 50, 100, 1000), clients: int = 100) -> list[BenchmarkRow]:
    """Measure one row per number of classes: one client's encryption, then a session of all clients."""
    rng = np.random.default_rng(_SEED)
    return [_measure(number, clients, rng) for number in classes]


def format_benchmark(rows: Sequence[BenchmarkRow], more_clients: int = 10_000) -> str:
    """Return two tables: the cost of one client next to the paper's figures, and the cost of all clients."""
    each = [["classes", "plaintext B", "paper", "ciphertext B", "paper", "encryption CPU s", "paper"]]
    total = [["classes", "clients", "up MB", "down MB", "total MB", "paper", "CPU s", ""]]
    for row in rows:
        paper = [f"{size:,}" for size in PAPER_BYTES.get(row.classes, ())] or ["–", "–"]
        each.append(
            [
                f"{row.classes:,}",
                f"{row.plaintext_bytes:,}",
                paper[0],
                f"{row.ciphertext_bytes:,}",
                paper[1],
                f"{row.seconds_per_client:.4f}",
                f"{PAPER_SECONDS_PER_CLIENT}" if row.classes == 10 else "–",
            ]
        )
        total += [_total_cells(row, "measured"), _total_cells(row.scale_to(more_clients), "scaled up")]
    return "\n".join(["One client", "", *_align(each), "", "All clients", "", *_align(total)])


def _measure(classes: int, clients: int, rng: np.random.Generator) -> BenchmarkRow:
    counts = rng.integers(0, _SAMPLES_PER_CLASS, (clients, classes))
    context = PublicContext(SecretKey.generate()[1])
    slots = to_slots(counts[0])
    seconds = []
    for _ in range(_REPEATS):
        started = time.process_time()
        ciphertexts = [context.encrypt(part) for part in slots]
        seconds.append(time.process_time() - started)
    started = time.process_time()
    result = sum_counts(counts, rng=rng)
    session = time.process_time() - started
    return BenchmarkRow(
        classes=classes,
        clients=clients,
        # The paper measures a plaintext as the size of Python's list: 56 bytes and 8 per class.
        plaintext_bytes=sys.getsizeof([0] * classes),
        ciphertext_bytes=sum(map(len, ciphertexts)),
        seconds_per_client=float(np.median(seconds)),
        bytes_up=result.bytes_up,
        bytes_down=result.bytes_down,
        seconds=session,
    )


def _total_cells(row: BenchmarkRow, how: str) -> list[str]:
    up, down = row.bytes_up / 1e6, row.bytes_down / 1e6
    paper = f"{PAPER_TOTAL_MB}" if (row.classes, row.clients) == (10, PAPER_CLIENTS) else "–"
    sizes = [f"{up:,.2f}", f"{down:,.2f}", f"{up + down:,.2f}"]
    return [f"{row.classes:,}", f"{row.clients:,}", *sizes, paper, f"{row.seconds:,.1f}", how]


def _align(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    ]
