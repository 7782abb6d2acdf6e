"""The FedWCM paper's own mathematics: imbalance, client scores, temperature, weights, adaptive momentum.

Pure NumPy, so it can be used with any other federated framework. Symbols as in the paper: C classes, K clients,
n_kc samples of class c at client k (`counts`), p the global class distribution, p̂ the target (uniform
unless given).

    D   = ‖p̂ − p‖₁                                  discrepancy: 0 when balanced, below 2 always
    L   = mean_k ‖p̂ − p_k‖₁                          mean local deviation: p_k the client's own
    s_k = Σ_c d_c n_kc / Σ_c n_kc                    Eq. 3, with d_c = max(p̂_c − p_c, 0) ("scarcity")
                                                     or |p̂_c − p_c| ("absolute", the printed form)
    s_k = ‖p̂ − p_k‖₁                                 or the prose of Section 5.1 ("local")
    T   = scale / (C · D)                            infinite when balanced
    w_k = exp(s_k / T) / Σ_j exp(s_j / T)            Eq. 4; FedWCM-X multiplies by n_k and renormalises
    w_k ≤ share · Σ_j w_j                            at most, if a run bounds it (`limit_shares`)
    α⁺  = α₀ + (1 − α₀)(1 − e^(−L)) · ŝ_round / ŝ    Eq. 5, kept in [α₀, 1 − ALPHA_MARGIN]
    g   = (1 − α) · mean_k ⌈n_k/b⌉ / (n̄/b)           momentum gain under nominal normalisation
    a_c = τ (log p_c − log p̂_c)                      added to the logits in training, or subtracted afterwards
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
ScoreRule = Literal["scarcity", "absolute", "local"]

ALPHA_MARGIN = 1e-6
"""Distance that the adaptive alpha keeps from 1, so that momentum is damped but never switched off."""

ABSENT = 0.5
"""Samples that a class without any counts as in a gathered distribution, so that its logarithm is finite."""

SMALLEST_SHARE = 1e-9
"""Added to every share before its logarithm is taken."""

_ROUNDING = 1e-12
"""A discrepancy below this is rounding error of the division by the total; the data counts as balanced."""


def discrepancy(counts: ArrayLike, target: ArrayLike | None = None) -> float:
    """Return D = ‖p̂ − p‖₁, the distance of the global class distribution from the target, in [0, 2)."""
    table = _checked_counts(counts)
    return _distance(_distribution(table), checked_distribution("target", target, table.shape[1]))


def local_deviations(counts: ArrayLike, target: ArrayLike | None = None) -> Floats:
    """Return ‖p̂ − p_k‖₁ of every client: how far its own class distribution is from the target, in [0, 2)."""
    table = _checked_counts(counts)
    wanted = checked_distribution("target", target, table.shape[1])
    deviations: Floats = np.abs(table / table.sum(axis=1, keepdims=True) - wanted).sum(axis=1)
    return deviations


def client_scores(
    counts: ArrayLike,
    target: ArrayLike | None = None,
    rule: ScoreRule = "scarcity",
    *,
    prior: ArrayLike | None = None,
) -> Floats:
    """Return one score per client: how much globally scarce data it holds; with `local`, how skewed its own is.

    `prior` is the global class distribution. It defaults to that of `counts` and must be given where `counts`
    covers only some of the clients: a client that scores itself has its own row and the gathered distribution.
    """
    if rule == "local":
        return local_deviations(counts, target)
    table = _checked_counts(counts)
    classes = table.shape[1]
    wanted = checked_distribution("target", target, classes)
    present = _distribution(table) if prior is None else checked_distribution("prior", prior, classes)
    if rule == "scarcity":
        deviation = np.maximum(wanted - present, 0.0)
    elif rule == "absolute":
        deviation = np.abs(wanted - present)
    else:
        raise ValueError(f"rule must be 'scarcity', 'absolute' or 'local', not {rule!r}")
    if _distance(present, wanted) == 0.0:
        return np.zeros(len(table))
    scores: Floats = (table @ deviation) / table.sum(axis=1)
    return scores


def temperature(counts: ArrayLike, target: ArrayLike | None = None, scale: float = 1.0) -> float:
    """Return T = scale / (C · D): a longer tail gives a lower temperature; infinite when balanced."""
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be a positive number, not {scale!r}")
    table = _checked_counts(counts)
    imbalance = discrepancy(table, target)
    return scale / (table.shape[1] * imbalance) if imbalance > 0 else float("inf")


def client_weights(scores: ArrayLike, temperature: float, samples: ArrayLike | None = None) -> Floats:
    """Return the softmax of the scores at this temperature (Eq. 4); the weights sum to 1.

    With `samples`, return the weights of FedWCM-X: multiplied by each client's sample count and renormalised.
    """
    s = _checked_vector("scores", scores)
    if not temperature > 0:
        raise ValueError(f"temperature must be positive (infinite when balanced), not {temperature!r}")
    # A difference that overflows to -inf is a weight of exactly 0.
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((s - s.max()) / temperature)
    if samples is not None:
        n = _checked_vector("samples", samples)
        if len(n) != len(s):
            raise ValueError(f"samples must have one entry per score: {len(n)} for {len(s)} scores")
        if (n <= 0).any():
            raise ValueError(f"samples must be positive: client {int(np.argmin(n))} has {n.min():g}")
        weights = weights * (n / n.max())
    result: Floats = weights / weights.sum()
    return result


def limit_shares(weights: ArrayLike, most: float) -> Floats:
    """Return weights with the same sum of which none is more than this share of it.

    What is cut off goes to the others in proportion to their weights. Among few clients an equal share may be more
    than `most`: each may have up to twice an equal share.
    """
    w = _checked_vector("weights", weights)
    total, top = float(w.sum()), min(1.0, max(most, 2.0 / len(w)))
    order = np.argsort(-w, kind="stable")
    for capped in range(len(w) + 1):
        rest, room = w[order[capped:]], total * (1.0 - top * capped)
        scale = room / rest.sum() if rest.sum() > _ROUNDING * total else 0.0
        if not len(rest) or rest[0] * scale <= total * top:
            break
    if not capped:
        return w
    limited = np.empty_like(w)
    limited[order[:capped]] = total * top
    limited[order[capped:]] = rest * scale if scale else room / max(len(rest), 1)
    return limited


def adaptive_alpha(deviation: float, round_mean: float, overall_mean: float, base: float = 0.1) -> float:
    """Return the alpha of the next round (Eq. 5), in [base, 1 − ALPHA_MARGIN].

    `deviation` is the exponent, L or D. `round_mean` is the mean score of the clients that answered,
    `overall_mean` that of all clients. If both are 0, as on balanced classes, their ratio is taken as 1.
    """
    for name, value in (("round_mean", round_mean), ("overall_mean", overall_mean)):
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a non-negative number, not {value!r}")
    if not deviation >= 0:
        raise ValueError(f"deviation must be non-negative, not {deviation!r}")
    if not 0 <= base <= 1:
        raise ValueError(f"base must be in [0, 1], not {base!r}")
    ratio = 1.0 if round_mean == overall_mean else min(round_mean / max(overall_mean, 1e-300), 1e300)
    alpha = base - (1.0 - base) * np.expm1(-deviation) * ratio
    return float(np.clip(alpha, base, max(base, 1.0 - ALPHA_MARGIN)))


def momentum_gain(alpha: float, samples: ArrayLike, batch_size: int) -> float:
    """Return the gain of the momentum from one round to the next if it is divided by n/b instead of ⌈n/b⌉ steps.

    At a gain of 1 or more the momentum grows geometrically, whatever the data. `samples` is the number of samples
    of a client: one number for all, or one per client.
    """
    n = _checked_vector("samples", np.atleast_1d(np.asarray(samples, dtype=np.float64)))
    if (n <= 0).any():
        raise ValueError(f"samples must be positive, not {n.min():g}")
    if not batch_size >= 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size!r}")
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1], not {alpha!r}")
    return float((1.0 - alpha) * np.ceil(n / batch_size).mean() / (n.mean() / batch_size))


def prior_shift(
    counts: ArrayLike, target: ArrayLike | None = None, tau: float = 1.0, absent: float = ABSENT
) -> Floats:
    """Return τ (log p − log p̂), by which a skewed class distribution shifts the logits of a model.

    A loss that adds it to the logits trains a model for the target distribution. From the logits of a model that
    was trained without it, it is subtracted afterwards. Never do both.

    Args:
        counts: samples of each class, in rows: `(clients × classes)`, or a single row over all clients.
        target: p̂, the distribution that the model will meet; uniform if not given.
        tau: strength; 0 changes nothing, 1 is Bayes' rule.
        absent: samples that a class without any counts as.
    """
    table = _checked_counts(counts)
    wanted = checked_distribution("target", target, table.shape[1])
    filled = np.maximum(table, absent)
    shares = filled / filled.sum(axis=1, keepdims=True)
    shift: Floats = tau * (np.log(shares + SMALLEST_SHARE) - np.log(wanted + SMALLEST_SHARE))
    return shift


def bayes_shift(shares: Floats, assumed: Floats) -> Floats:
    """Return what turns logits that presuppose the class distribution `assumed` into those for `shares`."""
    shift: Floats = np.log(shares + SMALLEST_SHARE) - np.log(assumed + SMALLEST_SHARE)
    return shift


def client_shares(counts: ArrayLike, natural: Floats) -> Floats:
    """Return the class distribution of a client's training samples, with C more drawn from that of all clients.

    So a class that the client never had keeps a small share: it may have it tomorrow.
    """
    weights = np.asarray(counts) + len(natural) * natural
    shares: Floats = weights / weights.sum()
    return shares


def _checked_counts(counts: ArrayLike) -> Floats:
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"counts must be a (clients × classes) array, not of shape {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError("counts must be finite: they contain a NaN or an infinity")
    if (table < 0).any():
        client, label = np.argwhere(table < 0)[0]
        raise ValueError(f"counts must not be negative: client {client}, class {label}: {table[client, label]:g}")
    empty = np.flatnonzero(table.sum(axis=1) == 0)
    if len(empty):
        raise ValueError(f"counts must not have all-zero rows: client {empty[0]} has no samples")
    return table


def checked_distribution(name: str, values: ArrayLike | None, classes: int) -> Floats:
    """Return shares of the classes that are none negative and sum to 1; uniform ones if none are given."""
    if values is None:
        return np.full(classes, 1.0 / classes)
    p = _checked_vector(name, values)
    if len(p) != classes:
        raise ValueError(f"{name} must have one entry per class: {len(p)} for {classes} classes")
    if (p < 0).any():
        raise ValueError(f"{name} must not be negative: class {int(np.argmin(p))} has {p.min():g}")
    if abs(p.sum() - 1.0) > 1e-6:
        raise ValueError(f"{name} must sum to 1, not {p.sum():g}")
    return p


def _checked_vector(name: str, values: ArrayLike) -> Floats:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"{name} must be a vector with at least one entry, not of shape {vector.shape}")
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} must be finite: it contains a NaN or an infinity")
    return vector


def _distribution(table: Floats) -> Floats:
    totals = table.sum(axis=0)
    distribution: Floats = totals / totals.sum()
    return distribution


def _distance(p: Floats, q: Floats) -> float:
    distance = float(np.abs(p - q).sum())
    return distance if distance > _ROUNDING else 0.0
