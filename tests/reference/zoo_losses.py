"""The losses and samplers for long tails, as formulas in float64.

A loss takes logits z of shape (n, C) and labels y, and returns its value and its gradient by z.
Symbols: n_c samples of class c, p the softmax of z, P the classes of a mini-batch, Q the others.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]
Labels = NDArray[np.int64]
Loss = tuple[float, Vector]


def log_softmax(z: Vector) -> Vector:
    shifted = z - z.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def one_hot(y: Labels, classes: int) -> Vector:
    return np.eye(classes)[y]


def cross_entropy(z: Vector, y: Labels, weights: ArrayLike | None = None, mean: str = "weights") -> Loss:
    """Mean of w_y (-log p_y), over the sum of the batch's weights (`mean="weights"`) or over n (`"samples"`)."""
    if mean not in ("weights", "samples"):
        raise ValueError(f"mean is {mean!r}; allowed: weights, samples")
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)[y]
    w = w / (w.sum() if mean == "weights" else len(y))
    log_p = log_softmax(z)
    picked = one_hot(y, z.shape[1])
    return -float((w * (log_p * picked).sum(axis=1)).sum()), w[:, None] * (np.exp(log_p) - picked)


def focal(z: Vector, y: Labels, gamma: float = 2.0) -> Loss:
    """Mean of (1 - p_y)^gamma (-log p_y)."""
    log_p = log_softmax(z)
    picked = one_hot(y, z.shape[1])
    log_py = (log_p * picked).sum(axis=1)
    rest = -np.expm1(log_py)  # 1 - p_y
    value = float((rest**gamma * -log_py).mean())
    slope = -(rest**gamma)  # p_y dL/dp_y, of a sample
    if gamma > 0:
        slope = slope + gamma * np.exp(log_py) * rest ** (gamma - 1) * log_py
    return value, slope[:, None] * (picked - np.exp(log_p)) / len(y)


def class_weights(
    counts: ArrayLike, kind: str, *, beta: float = 0.9999, normalise: str = "classes", absent: str = "one"
) -> Vector:
    """1 / n_c (`kind="inverse"`) or (1 - beta) / (1 - beta^n_c), the effective number (`"effective"`).

    Open in the specification: the scale, `normalise` being "classes" (mean 1 over all C), "present" (mean 1 over
    the classes with samples) or "none"; and a class without samples, which counts as one sample
    (`absent="one"`, as LDAM's margins do) or weighs 0 (`"zero"`).
    """
    n = np.asarray(counts, dtype=np.float64)
    floor = np.maximum(n, 1.0)
    if kind not in ("inverse", "effective"):
        raise ValueError(f"kind is {kind!r}; allowed: inverse, effective")
    w = 1.0 / floor if kind == "inverse" else (1 - beta) / (1 - beta**floor)
    if absent == "zero":
        w = np.where(n > 0, w, 0.0)
    if normalise == "none":
        return np.asarray(w)
    return np.asarray(w / (w.mean() if normalise == "classes" else w[n > 0].mean()))


def ldam_margins(counts: ArrayLike, max_margin: float = 0.5) -> Vector:
    """max_margin n_c^(-1/4) / max_j n_j^(-1/4), with max(n_c, 1) for n_c."""
    raw = np.maximum(np.asarray(counts, dtype=np.float64), 1.0) ** -0.25
    return np.asarray(max_margin * raw / raw.max())


def deferred_weights(counts: ArrayLike, r: int, from_round: int, **options: Any) -> Vector:
    """DRW: 1 for every class before `from_round` (the first round is 0), effective numbers from it on."""
    if r < from_round:
        return np.ones(len(np.asarray(counts)))
    return class_weights(counts, "effective", **options)


def ldam(
    z: Vector, y: Labels, margins: Vector, s: float = 30.0, weights: ArrayLike | None = None, mean: str = "weights"
) -> Loss:
    """Weighted cross-entropy of s (z - m_y at the true class); z are cosines if the head is normalised."""
    shifted = z - one_hot(y, z.shape[1]) * margins[y][:, None]
    value, gradient = cross_entropy(s * shifted, y, weights, mean)
    return value, s * gradient


def over_length(z: Vector, features: Vector) -> Vector:
    """z / ||(f, 1)||: logits over the length of what the head reads, its bias reading the 1."""
    return np.asarray(z / np.sqrt(1.0 + (features**2).sum(axis=1, keepdims=True)))


def through_length(d: Vector, z: Vector, features: Vector) -> tuple[Vector, Vector]:
    """Given the gradient d by `over_length`, those by z and by the features."""
    length = np.sqrt(1.0 + (features**2).sum(axis=1, keepdims=True))
    return d / length, -(d * z).sum(axis=1, keepdims=True) / length**3 * features


def prior_of(counts: ArrayLike) -> Vector:
    n = np.asarray(counts, dtype=np.float64)
    return np.asarray(n / n.sum())


def prior_ce(z: Vector, y: Labels, prior: ArrayLike, eps: float = 1e-9) -> Loss:
    """Cross-entropy of z + log(prior + eps). An absent class is shifted by log(eps), and nothing is left out."""
    return cross_entropy(z + np.log(np.asarray(prior, dtype=np.float64) + eps), y)


def balanced_law(y: Labels) -> Vector:
    """The balanced sampler: the probability of each local sample at each of the n_k draws, 1/n_c normalised.

    Draws are with replacement, so every local class is equally likely.
    """
    w = 1.0 / np.bincount(y)[y]
    return np.asarray(w / w.sum())


def perturb_probability(counts: ArrayLike) -> Vector:
    """BalanceFL: a sample of class c is perturbed with probability 1 - n_c / max n."""
    n = np.asarray(counts, dtype=np.float64)
    return np.asarray(1.0 - n / n.max())


def soft_cross_entropy(z: Vector, teacher: Vector, temperature: float) -> Loss:
    """Mean over the batch of - sum softmax(t/T) log softmax(z/T), without T^2; 0 without classes."""
    if z.shape[1] == 0:
        return 0.0, np.zeros_like(z)
    log_s, target = log_softmax(z / temperature), np.exp(log_softmax(teacher / temperature))
    return -float((target * log_s).sum(axis=1).mean()), (np.exp(log_s) - target) / (temperature * len(z))


def entropy(z: Vector, reduction: str = "sum") -> Loss:
    """Entropy of softmax(z), summed over the batch."""
    log_p = log_softmax(z)
    p = np.exp(log_p)
    h = -(p * log_p).sum(axis=1, keepdims=True)
    scale = 1.0 if reduction == "sum" else 1.0 / len(z)
    return scale * float(h.sum()), -scale * p * (log_p + h)


def balancefl_parts(
    z_noisy: Vector,
    z: Vector,
    z_teacher: Vector,
    y: Labels,
    lam: float = 1.0,
    temperature: float = 2.0,
    entropy_weight: float = 0.002,
    entropy_reduction: str = "sum",
    present: ArrayLike | None = None,
) -> tuple[float, Vector, Vector]:
    """CE(z_noisy[:, P], y) + lam KD(z[:, Q]) - 0.002 H(z[:, P]): value, gradient by z_noisy, gradient by z.

    P are the classes of y, unless `present` names others (a superset of them).
    """
    p = np.unique(y) if present is None else np.unique(np.asarray(present))
    q = np.setdiff1d(np.arange(z.shape[1]), p)
    d_noisy, d_plain = np.zeros_like(z), np.zeros_like(z)
    hard, d_noisy[:, p] = cross_entropy(z_noisy[:, p], np.searchsorted(p, y))
    soft, d_soft = soft_cross_entropy(z[:, q], z_teacher[:, q], temperature)
    spread, d_spread = entropy(z[:, p], entropy_reduction)
    d_plain[:, q], d_plain[:, p] = lam * d_soft, -entropy_weight * d_spread
    return hard + lam * soft - entropy_weight * spread, d_noisy, d_plain


def clip_logits(images: Vector, texts: Vector, scale: float = 100.0) -> Vector:
    """100 cos(image, text) of embeddings, the zero-shot logits."""
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (images, texts)]
    return np.asarray(scale * unit[0] @ unit[1].T)


def clip_distillation(z: Vector, teacher: Vector, temperature: float = 3.0) -> Loss:
    """T^2 KL(softmax(teacher/T) || softmax(z/T)), the mean over the batch of the sums over classes."""
    cross, gradient = soft_cross_entropy(z, teacher, temperature)
    log_t = log_softmax(teacher / temperature)
    own = float((np.exp(log_t) * log_t).sum(axis=1).mean())
    return temperature**2 * (own + cross), temperature**2 * gradient


def clip2fl_client(z: Vector, y: Labels, teacher: Vector, alpha: float = 1.0, temperature: float = 3.0) -> Loss:
    """CE + alpha times the distillation."""
    hard, d_hard = cross_entropy(z, y)
    soft, d_soft = clip_distillation(z, teacher, temperature)
    return hard + alpha * soft, d_hard + alpha * d_soft


def sigmoid_ce(z: Vector, y: Labels) -> Loss:
    """Fed-GraB's loss: the mean over the batch of the sum over classes of binary cross-entropies."""
    target = one_hot(y, z.shape[1])
    value = float((np.logaddexp(0.0, z) - target * z).sum() / len(y))
    return value, (0.5 * (1 + np.tanh(z / 2)) - target) / len(y)
