"""Mime: MimeLite with a control variate that makes each local step a step on the global objective.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Mime: Mimicking Centralized Stochastic Algorithms in
Federated Learning. 2020 (NeurIPS 2021 as Breaking the Centralized Barrier for Cross-Device Federated Learning).
Sources: google/fedjax (its algorithm `mime`).

    g̃ = g(w) − g(x) + ḡ,   ḡ = Σ_k p_k ∇f_k(x)       g(w) and g(x) on the same mini-batch
    v = (1 − beta) g̃ + beta · m                       direction of each local step
    m⁺ = (1 − beta) ḡ + beta · m

Since v = m⁺ + (1 − beta)(g(w) − g(x)), the server sends one vector, m⁺, instead of m and ḡ. A step costs two
gradients, and a round also a pass over all local data for ḡ. With full participation, the optimum of Σ_k p_k f_k
is a fixed point for any batches and any numbers of steps; with partial participation, ḡ is that of the round's
clients.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.types import Context, GradientOracle, State, Vec
from fedwcm.methods.mimelite import MimeLite


@dataclass(frozen=True, kw_only=True)
class Mime(MimeLite):
    """MimeLite with variance-reduced gradients.

    Args:
        beta: share of the momentum in a step, and its decay per round.
    """

    name: ClassVar[str] = "mime"

    def broadcast(self, s: State) -> State:
        return {"momentum": s["next"]}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        # g(w) is evaluated first, so that the training loss and BatchNorm's statistics are those at w.
        difference = grad(w) - grad(ctx.x.expand_as(w))
        return (1.0 - self.beta) * difference + ctx.message["momentum"], c
