"""Mime: MimeLite with a control variate that makes each local step a step on the global objective.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Mime: Mimicking Centralized Stochastic Algorithms in
Federated Learning. 2020 (NeurIPS 2021 as Breaking the Centralized Barrier for Cross-Device Federated Learning).
(Read: the abstract; fedjax's `mime`, by Google.)

    g̃ = g(w) − g(x) + ḡ,   ḡ = Σ_k p_k ∇f_k(x)       g(w) and g(x) on the same mini-batch
    v = (1 − beta) g̃ + beta · m                       direction of each local step
    m⁺ = (1 − beta) ḡ + beta · m

As v = m⁺ + (1 − beta)(g(w) − g(x)), the server sends m⁺, one vector, in place of m and ḡ. Two gradients a step and
the pass over all local data for ḡ. Where everybody takes part, the optimum of Σ_k p_k f_k is a fixed point for any
batches and any numbers of steps; a round with a part of the clients has that part's ḡ.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.types import Context, GradientOracle, State, Vec
from fedwcm.methods.mimelite import MimeLite


@dataclass(frozen=True, kw_only=True)
class Mime(MimeLite):
    """MimeLite with variance-reduced gradients.

    Args:
        beta: share of the momentum in a step, and what is left of it after a round.
    """

    name: ClassVar[str] = "mime"

    def broadcast(self, s: State) -> State:
        return {"momentum": s["next"]}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        # g(w) comes first, so that the training loss and BatchNorm's statistics are those at w.
        difference = grad(w) - grad(ctx.x.expand_as(w))
        return (1.0 - self.beta) * difference + ctx.message["momentum"], c
