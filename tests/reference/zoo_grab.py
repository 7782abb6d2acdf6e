"""Fed-GraB's two parts: the self-adjusting gradient balancer of a client, and the direct prior analyser."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .zoo_losses import Labels, Vector, one_hot, sigmoid_ce

Mask = NDArray[np.bool_]


def balance(u: Vector, slope: float = 0.5) -> Vector:
    """f(u) = (10/9) / (1/9 + exp(-u/2)), in (0, 10) and 1 at 0."""
    with np.errstate(over="ignore"):  # exp(-u/2) = inf is f = 0
        return np.asarray((10 / 9) / (1 / 9 + np.exp(-slope * u)))


class GradientBalancer:
    """The controllers of one client, one a class; they live as long as the client does.

    At each step the controllers first read what the steps before left (nothing at the very first, so u = 0),
    then the gradient is weighted, and then its absolute values are added up, positives and negatives apart.
    A class without an open controller keeps weight 1. Open in the specification, the first being the default:
    - `closed`: a closed class is still added up ("counted") or is not ("ignored"), its u and errors resting; or
      all that its controller knew is forgotten, so that it starts anew ("reset");
    - `clamp`: u is free (None; the nominal 100 has no effect in the released code), or kept in +-clamp;
    - `negatives`: weighted by f(-u), or by 1 if False, as one released version does.
    """

    def __init__(
        self,
        classes: int,
        kp: float = 10.0,
        ki: float = 0.01,
        kd: float = 0.1,
        slope: float = 0.5,
        clamp: float | None = None,
        closed: str = "counted",
        negatives: bool = True,
    ) -> None:
        self.kp, self.ki, self.kd, self.slope, self.clamp = kp, ki, kd, slope, clamp
        self.closed, self.negatives = closed, negatives
        self.pos, self.neg, self.u = np.zeros(classes), np.zeros(classes), np.zeros(classes)
        self.errors = np.zeros((2, classes))  # e_{t-1}, e_{t-2}

    def control(self, opened: Mask) -> None:
        """u += Kp (e_t - e_{t-1}) + Ki e_t + Kd (e_t - 2 e_{t-1} + e_{t-2}), with e = 0 - (pos - neg)."""
        e = self.neg - self.pos
        e1, e2 = self.errors
        u = self.u + self.kp * (e - e1) + self.ki * e + self.kd * (e - 2 * e1 + e2)
        if self.clamp is not None:
            u = np.clip(u, -self.clamp, self.clamp)
        self.u = np.where(opened, u, self.u)
        self.errors = np.where(opened, np.stack([e, e1]), self.errors)

    def gradient(self, z: Vector, y: Labels, opened: Mask | None = None, gated: Iterable[int] = ()) -> Vector:
        """The weighted gradient by z, of one step. `gated` classes keep weight 1, and are not added up."""
        classes = z.shape[1]
        opened = np.ones(classes, dtype=bool) if opened is None else opened
        self.control(opened)
        free = ~np.isin(np.arange(classes), list(gated))
        u = np.where(opened & free, self.u, 0.0)
        target = one_hot(y, classes)
        negative = balance(-u, self.slope) if self.negatives else np.ones(classes)
        g = sigmoid_ce(z, y)[1] * np.where(target == 1, balance(u, self.slope), negative)
        counted = free if self.closed == "counted" else free & opened
        size = np.abs(g) * counted
        self.pos = self.pos + (size * target).sum(axis=0)
        self.neg = self.neg + (size * (1 - target)).sum(axis=0)
        if self.closed == "reset":
            for known in (self.u, self.pos, self.neg, *self.errors):
                known[~opened] = 0.0
        return g


def gate_probabilities(tails: int) -> Vector:
    """How likely the j-th tail class is to keep weight 1 in the released hook: 0.1^(j / (T - 1)), 1 for j = 0."""
    return np.asarray(0.1 ** (np.arange(tails) / max(tails - 1, 1)))


def estimated_share(head_weight: Vector) -> Vector:
    """Norms of the head's rows, standardised, shifted to start at 0, and summing to 1; uniform if equal."""
    norms = np.linalg.norm(head_weight, axis=1)
    spread = float(norms.std())
    if spread == 0:
        return np.full(len(norms), 1 / len(norms))
    standard = (norms - norms.mean()) / spread
    shifted = standard - standard.min()
    return np.asarray(shifted / shifted.sum())


def groups(share: Vector, cuts: tuple[float, float] = (0.75, 0.95), crossing: str = "earlier") -> list[list[int]]:
    """Head, middle and tail classes by their share added up from the largest on; ties by the class number.

    Open in the specification: the class that crosses a cut is in the group before it (`crossing="earlier"`, as
    released), or in the one after it (`"later"`).
    """
    order = np.argsort(-share, kind="stable")
    total = np.cumsum(share[order]) / share.sum()
    before = np.concatenate([[0.0], total[:-1]])
    if crossing == "earlier":
        level = np.searchsorted(cuts, before, side="right")
    else:
        level = np.searchsorted(cuts, total, side="left")
    return [[int(c) for c in order[level == g]] for g in range(3)]


class PriorAnalyser:
    """The mean over rounds of the share that the global head's norms tell."""

    def __init__(self, classes: int) -> None:
        self.total, self.rounds = np.zeros(classes), 0

    def see(self, head_weight: Vector) -> None:
        self.total, self.rounds = self.total + estimated_share(head_weight), self.rounds + 1

    @property
    def share(self) -> Vector:
        return np.asarray(self.total / self.rounds)
