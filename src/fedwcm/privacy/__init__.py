"""The global class distribution without revealing any client's: homomorphic encryption, and noise.

`sum_counts(counts)` runs the whole protocol in one process. To run it over a network, give each client a `Client`,
which answers a request in bytes with a reply in bytes, and run a `Server` over your own `Transport`.
"""

from fedwcm.privacy.bench import BenchmarkRow, benchmark, format_benchmark
from fedwcm.privacy.client import MIN_CONTRIBUTORS, Client, KeyHolder
from fedwcm.privacy.encoding import MAX_CONTRIBUTORS, MAX_COUNT
from fedwcm.privacy.options import noisy_counts
from fedwcm.privacy.server import ClassTotals, Receive, Refused, Server, Transport, loopback, sum_counts
from fedwcm.privacy.wire import ProtocolError

__all__ = [
    "MAX_CONTRIBUTORS",
    "MAX_COUNT",
    "MIN_CONTRIBUTORS",
    "BenchmarkRow",
    "ClassTotals",
    "Client",
    "KeyHolder",
    "ProtocolError",
    "Receive",
    "Refused",
    "Server",
    "Transport",
    "benchmark",
    "format_benchmark",
    "loopback",
    "noisy_counts",
    "sum_counts",
]
