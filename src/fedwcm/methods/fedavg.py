"""FedAvg: clients train independently, and the server averages their increments.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017. Sources: the paper.

    w ← w − lr · g                            each local step
    x ← x + server_lr · Σ_k p_k (w_k − x)     p_k ∝ n_k (`average="samples"`) or equal (`"uniform"`)
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.method import Method


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """The defaults of the interface, registered as a method."""

    name: ClassVar[str] = "fedavg"
