"""FedWMSAM (Li et al. 2025): client momentum with a correction of its own, perturbed along the global way.

A client mixes m_k = m + alpha / (1 - alpha) (c - c_i) into its steps, so that one step is
alpha (grad(y + e) + c - c_i) + (1 - alpha) m: FedCM with SCAFFOLD's correction, and one gradient a step.
e = rho d / ||d|| with d = x + b m_k - y at step b = 0, 1, ..., hence e = 0 at the first step.

Open in the specification, the first being the default:
- the mean over the cohort of 1 + cos is clipped (`clip="mean"`), or each client's is (`"each"`);
- 1 + cos is `undefined` where m or the move is 0: 0 as released, or 1 for a cosine of 0;
- the cosine is with the m that the round used, before its update;
- e points to x + way(b, eta) m_k: b to the letter, or e.g. -eta b for the way down;
- that m_k is the client's (`momentum="personal"`), or m (`"global"`);
- `momentum_norm` and `server_step` as in client momentum; the control variates are divided as m is, unless
  `control_norm` says otherwise; `controls` as in SCAFFOLD.
A negative rho turns e around, which the released code does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .zoo_shared import SAM_EPS, Cohorts, Federation, Gradient, Vector, ascent


@dataclass(frozen=True)
class Schedule:
    """alpha <- (1 - rate) alpha + rate clip(1 + cos(D_k, m)), over the clients of a round."""

    rate: float = 0.01
    low: float = 0.1
    high: float = 0.9
    clip: str = "mean"
    undefined: float = 0.0
    trace: list[float] = field(default_factory=list)  # every alpha that was set

    def value(self, move: Vector, m: Vector) -> float:
        """m is in gradient units and a move goes downhill: 0 where they agree, 2 where they fight."""
        norms = float(np.linalg.norm(move) * np.linalg.norm(m))
        return self.undefined if norms == 0 else 1.0 + float(move @ m) / norms

    def after(self, alpha: float, moves: dict[int, Vector], m: Vector) -> float:
        if self.clip not in ("mean", "each"):
            raise ValueError(f"clip is {self.clip!r}; allowed: mean, each")
        values = [self.value(move, m) for move in moves.values()]
        inner = [float(np.mean(values))] if self.clip == "mean" else values
        alpha = (1 - self.rate) * alpha + self.rate * float(np.mean(np.clip(inner, self.low, self.high)))
        self.trace.append(alpha)
        return alpha


def by_steps(b: int, eta: float) -> float:
    """The literal way ahead: one m_k a step, whatever the learning rate is."""
    del eta
    return float(b)


def local_steps(fed: Federation, k: int, momentum_norm: str) -> float:
    """B_k, or E n_bar / b without a ceiling."""
    if momentum_norm not in ("exact", "nominal"):
        raise ValueError(f"momentum_norm is {momentum_norm!r}; allowed: exact, nominal")
    return fed.steps(k) if momentum_norm == "exact" else float(fed.epochs * fed.n.mean() / fed.batch_size)


@dataclass(frozen=True)
class Ahead:
    """Where a perturbation points to, from y."""

    way: Callable[[int, float], float] = by_steps
    momentum: str = "personal"
    eps: float = SAM_EPS

    def point(self, b: int, eta: float, x: Vector, m_k: Vector, m: Vector) -> Vector:
        if self.momentum not in ("personal", "global"):
            raise ValueError(f"momentum is {self.momentum!r}; allowed: personal, global")
        return x + self.way(b, eta) * (m_k if self.momentum == "personal" else m)


AHEAD = Ahead()


class Controls:
    """SCAFFOLD's c and c_i, option II."""

    def __init__(self, fed: Federation, x0: ArrayLike, controls: str) -> None:
        self.c, self.c_i = np.zeros(np.shape(x0)), fed.nothing(x0)
        self.q = fed.weights(list(self.c_i), controls)

    def update(self, directions: dict[int, Vector]) -> None:
        """c_i <- c_i - c + (x - y_B) / (eta Q), with the c of this round for everybody; c takes the changes."""
        change = sum((self.q[k] * (d - self.c) for k, d in directions.items()), np.zeros_like(self.c))
        for k, d in directions.items():
            self.c_i[k] = self.c_i[k] - self.c + d
        self.c = self.c + change


def run_fedwmsam(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    rho: float,
    alpha: float = 0.1,
    schedule: Schedule | None = None,
    ahead: Ahead = AHEAD,
    momentum_norm: str = "exact",
    control_norm: str | None = None,
    server_step: str = "average",
    server_lr: float = 1.0,
    average: str = "uniform",
    controls: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """FedWMSAM, from `alpha` on. The mean of the moves is uniform, and m takes the same."""
    fed = Federation(sizes, cohorts, **local)
    m, own, schedule = np.zeros(np.shape(x0)), Controls(fed, x0, controls), schedule or Schedule()

    def move(k: int, r: int, eta: float, x: Vector) -> Vector:
        m_k = m + alpha / (1 - alpha) * (own.c - own.c_i[k])
        y = x.copy()
        for b in range(fed.steps(k)):
            e = ascent(ahead.point(b, eta, x, m_k, m) - y, rho, ahead.eps)
            y = y - eta * (alpha * gradient(k, r, b, y + e) + (1 - alpha) * m_k)
        return y - x

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal m, alpha
        moves = {k: move(k, r, eta, x) for k in cohort}
        directions, gradients = (
            {k: -d / (eta * local_steps(fed, k, norm)) for k, d in moves.items()}
            for norm in (momentum_norm, control_norm or momentum_norm)
        )
        alpha = schedule.after(alpha, moves, m)
        own.update(gradients)
        m = fed.mean(directions, average)
        return x - server_lr * m if server_step == "literal" else x + server_lr * fed.mean(moves, average)

    return fed.run(x0, one_round)
