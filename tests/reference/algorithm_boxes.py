"""Algorithms 1 (FedWCM) and 2 (FedWCM-X) of the paper, transcribed into plain NumPy.

Tests hold the package to this file, so it shares no code with it and makes no attempt to be fast.
Where the paper contradicts itself, a comment says which reading is taken, by its number in the docs.
Symbols: C classes, D the L1 distance between target and global class distribution, T the temperature,
B_k the local steps of client k, E epochs, b the batch size, Delta the global momentum.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]
Counts = NDArray[np.int64]
Gradient = Callable[[int, int, int, Vector], Vector]
State = tuple[Vector, Vector, float]  # x_r, Delta_r, alpha_r

ALPHA_CEILING = 1 - 1e-6  # the paper's half-open interval [0.1, 1)

ALLOWED = {
    "method": ("fedavg", "fedcm", "fedwcm", "fedwcm-x"),
    "score": ("scarcity", "absolute", "local"),
    "alpha_rule": ("local", "heterogeneity", "discrepancy", "temperature", "temperature-clients"),
    "q": ("ratio", "inverse", "off"),
    "momentum_norm": ("exact", "nominal"),
    "server_step": ("average", "literal"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The inputs of a box ("Require") and the reading taken wherever the text allows several."""

    local_lr: float
    epochs: int
    batch_size: int
    method: str = "fedwcm"
    lr_decay: float = 1.0
    weight_decay: float = 0.0
    clip: float | None = None
    server_lr: float = 1.0
    score: str = "scarcity"
    target: ArrayLike | None = None
    temperature_scale: float = 0.25
    alpha_rule: str = "local"
    q: str = "ratio"
    momentum_norm: str = "exact"
    server_step: str = "average"
    normalize: bool = True
    weighting: bool = True
    adaptive: bool = True
    alpha0: float = 0.1

    def __post_init__(self) -> None:
        for field, allowed in ALLOWED.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} is {getattr(self, field)!r}; allowed: {', '.join(allowed)}")
        if self.method == "fedavg" and self.server_step == "literal":
            raise ValueError("server_step is 'literal'; fedavg keeps no momentum and allows only 'average'")


@dataclass(frozen=True)
class GlobalInformation:
    """What is gathered before round 0."""

    n: Counts  # n_k
    n_bar: float  # mean client size
    gap: Vector  # p_hat - p
    s: Vector  # the scores s_k
    t: float  # the temperature T
    apart: Vector  # ||p_hat - p_k||_1, each client's own deviation
    from_all: Vector  # ||p - p_k||_1, how far each client is from all data


def gather(counts: ArrayLike, o: Options) -> GlobalInformation:
    """Global information gathering: the scores (Eq. 3) and the temperature."""
    table = np.asarray(counts, dtype=np.int64)
    n = table.sum(axis=1)
    if n.min() == 0:
        raise ValueError(f"counts has empty clients {np.flatnonzero(n == 0)}; each needs at least one sample")
    classes = table.shape[1]
    p_hat = np.full(classes, 1 / classes) if o.target is None else np.asarray(o.target, dtype=np.float64)
    gap = p_hat - table.sum(axis=0) / table.sum()

    # Reading 4: |p_hat - p| as printed is largest for the head class; "scarcity" keeps the positive part.
    worth = np.maximum(gap, 0.0) if o.score == "scarcity" else np.abs(gap)
    s = (table @ worth) / n  # Eq. 3
    apart = np.array([sum(abs(p_hat - row / row.sum())) for row in table])
    from_all = np.array([sum(abs(p_hat - gap - row / row.sum())) for row in table])
    if o.score == "local":  # the prose of Section 5.1: "the deviation of its local distribution"
        s = apart

    # Reading 5: the text describes T without a formula; balanced data makes it infinite.
    d = float(np.abs(gap).sum())
    t = math.inf if d == 0 else o.temperature_scale / (classes * d)
    return GlobalInformation(n=n, n_bar=float(n.mean()), gap=gap, s=s, t=t, apart=apart, from_all=from_all)


def softmax_weights(s: Vector, t: float) -> Vector:
    """Eq. 4 over the clients that answered."""
    if math.isinf(t):
        return np.full(len(s), 1 / len(s))
    powers: Vector = np.exp((s - s.max()) / t)  # the shift cancels in the ratio and avoids overflow
    weights: Vector = powers / powers.sum()
    return weights


def cohort_weights(cohort: list[int], known: GlobalInformation, o: Options) -> Vector:
    """The weights of the clients that answered, in their order."""
    uniform = np.full(len(cohort), 1 / len(cohort))
    share: Vector = known.n[cohort] / known.n[cohort].sum()
    if o.method == "fedavg":
        return share
    if o.method == "fedcm":
        return uniform
    w = softmax_weights(known.s[cohort], known.t) if o.weighting else uniform
    if o.method == "fedwcm":
        return w
    if not o.weighting:
        return share
    w = w * share  # Algorithm 2: w'_k = w_k * n_k / sum_j n_j
    return w / w.sum() if o.normalize else w  # Reading 8: as printed, w' sums to about 1/m, not to 1


def score_ratio(cohort: list[int], known: GlobalInformation, o: Options) -> float:
    """q_r of Eq. 5: 1 for 0/0 (reading 7); its inverse is unbounded for a round without scarce data."""
    round_mean, overall_mean = float(known.s[cohort].mean()), float(known.s.mean())
    if o.q == "off" or overall_mean == 0:
        return 1.0
    if o.q == "ratio":
        return round_mean / overall_mean
    return 1e300 if round_mean == 0 else overall_mean / round_mean


def next_alpha(cohort: list[int], known: GlobalInformation, o: Options) -> float:
    """Eq. 5, with alpha0 for the printed 0.1."""
    # Reading 6: the printed exponent T/K falls as imbalance grows, against the text; D rises. K may be the classes
    # or, as in Eq. 1, the clients. The prose's deviation is each client's own, which is not 0 on balanced data.
    d = float(np.abs(known.gap).sum())
    exponent = {
        "discrepancy": d,
        "temperature": known.t / len(known.gap),
        "temperature-clients": known.t / len(known.n),
        "local": float(known.apart.mean()),
        "heterogeneity": float(known.from_all.mean()),  # the deviation that Appendix E speaks of
    }[o.alpha_rule]
    raw = o.alpha0 + (1 - o.alpha0) * (1 - math.exp(-exponent)) * score_ratio(cohort, known, o)
    return min(max(raw, o.alpha0), ALPHA_CEILING)


def clipped(v: Vector, limit: float | None) -> Vector:
    """v shortened to the norm `limit` if it is longer."""
    norm = float(np.linalg.norm(v))
    return v if limit is None or norm <= limit else v * (limit / norm)


def local_model(
    x: Vector, direction: Callable[[int, Vector], Vector], steps: int, eta: float, o: Options
) -> Vector:
    """The inner loop of both boxes: x_{B,k}, from the mixed direction v_{b,k}."""
    w = x.copy()  # x_{0,k} = x_r
    for b in range(steps):
        v = direction(b, w)
        # Clipping acts on the mixed direction; weight decay follows and is not scaled by alpha.
        w = w - eta * (clipped(v, o.clip) + o.weight_decay * w)  # Eq. 6
    return w


def play_round(
    r: int, cohort: list[int], state: State, gradient: Gradient, known: GlobalInformation, o: Options
) -> dict[str, Any]:
    """The body of the outer loop of both boxes, for the clients that answered."""
    x, momentum, alpha = state
    eta = o.local_lr * o.lr_decay**r
    b_hat = o.epochs * math.ceil(known.n_bar / o.batch_size)  # Reading 15: "a balanced data split"
    weights = cohort_weights(cohort, known, o)
    local: dict[int, Vector] = {}
    mean_move, direction, gain = np.zeros_like(x), np.zeros_like(x), 0.0

    for w_k, k in zip(weights, cohort, strict=True):

        def v(b: int, w: Vector, k: int = k) -> Vector:
            return alpha * gradient(k, r, b, w) + (1 - alpha) * momentum

        b_k = o.epochs * math.ceil(known.n[k] / o.batch_size)
        eta_k = eta * b_hat / b_k if o.method == "fedwcm-x" else eta
        local[k] = local_model(x, v, b_k, eta_k, o)
        # Reading 1: printed as x_B - x_r and then subtracted, which ascends; x_r - x_B descends.
        delta_k = x - local[k]
        # Reading 3: 1/(eta_l B) with the steps really taken, or with E * n_bar / b and no ceiling.
        norm = eta_k * b_k if o.momentum_norm == "exact" else eta * o.epochs * known.n_bar / o.batch_size
        mean_move = mean_move + w_k * delta_k
        direction = direction + w_k * delta_k / norm
        gain += (1 - alpha) * w_k * (eta_k * b_k) / norm

    delta_next = momentum if o.method == "fedavg" else direction  # FedAvg keeps Delta = 0
    # Reading 2: "literal" is the printed step; "average" moves to the weighted mean of the local models.
    step = delta_next if o.server_step == "literal" else mean_move
    adapts = o.adaptive and o.method in ("fedwcm", "fedwcm-x")
    alpha_next = next_alpha(cohort, known, o) if adapts else alpha
    return record(r, (x - o.server_lr * step, delta_next, alpha_next), alpha, weights, float(gain), local)


def record(
    r: int, after: State, alpha_used: float, weights: Vector, gain: float, local: dict[int, Vector]
) -> dict[str, Any]:
    """What a round reports."""
    x, momentum, alpha_next = after
    return {
        "round": r,
        "x": x,
        "momentum": momentum,
        "alpha_used": alpha_used,
        "alpha_next": alpha_next,
        "weights": weights,
        "gain": gain,
        "local": local,
    }


def run_reference(
    x0: ArrayLike, gradient: Gradient, counts: ArrayLike, cohorts: Sequence[Sequence[int]], **options: Any
) -> list[dict[str, Any]]:
    """Run a box for `len(cohorts)` rounds and return what each round did.

    `gradient(client, round, step, w)` gives the mini-batch gradient, `counts` (clients, classes) the data,
    `cohorts` the clients that answered in each round; `options` are the fields of `Options`.
    """
    o = Options(**options)
    known = gather(counts, o)
    x = np.array(x0, dtype=np.float64)
    alpha = 1.0 if o.method == "fedavg" else o.alpha0  # FedAvg: the inner loop without momentum
    state: State = (x, np.zeros_like(x), alpha)  # Reading 14: Delta_0 is unstated

    history: list[dict[str, Any]] = []
    for r, answered in enumerate(cohorts):
        cohort = [int(k) for k in answered]
        if cohort:
            done = play_round(r, cohort, state, gradient, known, o)
        else:  # Reading 7: a round without an answer keeps x, Delta and alpha
            done = record(r, state, state[2], np.zeros(0), 0.0, {})
        history.append(done)
        state = (done["x"], done["momentum"], done["alpha_next"])
    return history
