"""The global class distribution without any client's own: sums under homomorphic encryption, and noise.

`gather(counts)` runs the whole protocol in one process. To run it over a network, give each client a `Client`
(a request in, a reply out, both bytes) and run a `Server` over your own `Transport`.
"""

from fedwcm.privacy.bench import BenchmarkRow, benchmark, format_benchmark
from fedwcm.privacy.client import MIN_CONTRIBUTORS, Client, Contributor, KeyHolder
from fedwcm.privacy.encoding import MAX_CONTRIBUTORS, MAX_COUNT
from fedwcm.privacy.gathering import gather, loopback
from fedwcm.privacy.noise import noisy_counts, noisy_score
from fedwcm.privacy.server import ClassTotals, Refused, Server, Transport
from fedwcm.privacy.wire import ProtocolError

__all__ = [
    "MAX_CONTRIBUTORS",
    "MAX_COUNT",
    "MIN_CONTRIBUTORS",
    "BenchmarkRow",
    "ClassTotals",
    "Client",
    "Contributor",
    "KeyHolder",
    "ProtocolError",
    "Refused",
    "Server",
    "Transport",
    "benchmark",
    "format_benchmark",
    "gather",
    "loopback",
    "noisy_counts",
    "noisy_score",
]
