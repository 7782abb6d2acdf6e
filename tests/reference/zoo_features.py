"""The federated features of CReFF and CLIP2FL: gradients of a head, their matching, and the head's re-training.

Federated features are an array (C, m, d): m vectors for each class. A head is flat, its weight (C, d) row by
row and then its bias.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .softmax_regression import loss_gradient
from .zoo_losses import Vector, log_softmax, one_hot


def class_gradient(head: Vector, batches: Sequence[Vector], label: int, classes: int) -> Vector:
    """Gradient of the mean cross-entropy by the head, of one class; the plain mean over the batches."""
    each = [loss_gradient(head, f, np.full(len(f), label), classes)[1] for f in batches]
    return np.asarray(np.mean(each, axis=0))


def mean_gradients(uploads: Sequence[dict[int, tuple[int, Vector]]], class_average: str) -> dict[int, Vector]:
    """Per class, the mean of (n_kc, gradient) over the clients that have it: plain, or by n_kc."""
    if class_average not in ("clients", "samples"):
        raise ValueError(f"class_average is {class_average!r}; allowed: clients, samples")
    means = {}
    for c in sorted({c for upload in uploads for c in upload}):
        having = [upload[c] for upload in uploads if c in upload]
        weights = [n if class_average == "samples" else 1 for n, _ in having]
        means[c] = np.average([g for _, g in having], axis=0, weights=weights)
    return means


def row_distance(real: Vector, made: Vector, eps: float) -> tuple[float, Vector]:
    """Sum over rows of 1 - <r, s> / (||r|| ||s|| + eps), and its gradient by `made`; 0 slope of a norm at 0."""
    dot = (real * made).sum(axis=1, keepdims=True)
    n_real, n_made = (np.linalg.norm(v, axis=1, keepdims=True) for v in (real, made))
    below = n_real * n_made + eps
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.where(below > 0, dot / below, 0.0)
        unit = np.where(n_made > 0, made / n_made, 0.0)
        gradient = np.where(below > 0, -real / below + dot * n_real * unit / below**2, 0.0)
    return float((1 - cosine).sum()), gradient


def matching(
    head: Vector, features: Vector, label: int, real: Vector, classes: int, eps: float = 1e-6, bias: bool = True
) -> tuple[float, Vector]:
    """Distance of the features' head gradient to `real`, and its gradient by the features (n, d).

    The rows of the weight are compared one by one, and the bias as one row. Through G_W = E^T F and
    G_b = 1^T E with E = (softmax(F W^T + b) - onehot) / n, the distance reaches F twice: directly, and by E.
    """
    n, d = features.shape
    cut = classes * d
    weight, shift = head[:cut].reshape(classes, d), head[cut:]
    p = np.exp(log_softmax(features @ weight.T + shift))
    e = (p - one_hot(np.full(n, label), classes)) / n
    far_w, d_w = row_distance(real[:cut].reshape(classes, d), e.T @ features, eps)
    far_b, d_b = row_distance(real[None, cut:], e.sum(axis=0, keepdims=True), eps)
    if not bias:
        far_b, d_b = 0.0, np.zeros_like(d_b)
    d_e = features @ d_w.T + d_b
    d_z = p * (d_e - (p * d_e).sum(axis=1, keepdims=True)) / n
    return far_w + far_b, e @ d_w + d_z @ weight


def contrast(
    features: Vector, text: ArrayLike, temperature: float = 0.1, unit: bool = False, exclude_self: bool = False
) -> tuple[float, Vector]:
    """CLIP2FL: supervised contrast of (C, m, d) features with their class's text, repeated m times as keys.

    The mean over anchors i of minus the mean over the keys j of its class of log softmax_j(<f_i, t_j> / tau).
    Without `exclude_self` the repeats add the constant log m only. With it, as released, the key at the anchor's
    own position is neither a positive nor in the sum, and m has to exceed 1. `unit` normalises the features
    (released: not); the text is taken as it is.
    """
    classes, m, d = features.shape
    raw = features.reshape(-1, d)
    norm = np.linalg.norm(raw, axis=1, keepdims=True) if unit else np.ones((len(raw), 1))
    f, t, y = raw / norm, np.asarray(text, dtype=np.float64), np.repeat(np.arange(classes), m)
    copies = np.full((len(raw), classes), float(m)) - one_hot(y, classes) * exclude_self
    score = f @ t.T / temperature
    log_p = log_softmax(score + np.log(copies)) - np.log(copies)  # of one key of each class
    picked = one_hot(y, classes)
    d_f = (copies * np.exp(log_p) - picked) @ t / (temperature * len(raw))
    d_raw = (d_f - f * (f * d_f).sum(axis=1, keepdims=True)) / norm if unit else d_f
    return -float((log_p * picked).sum(axis=1).mean()), d_raw.reshape(features.shape)


def retrain(head: Vector, features: Vector, batches: Iterable[ArrayLike], lr: float) -> Vector:
    """SGD on the cross-entropy of all features, class after class; `batches` numbers the features of each step."""
    classes, m, d = features.shape
    rows, labels = features.reshape(-1, d), np.repeat(np.arange(classes), m)
    for chosen in batches:
        at = np.asarray(chosen, dtype=np.int64)
        head = head - lr * loss_gradient(head, rows[at], labels[at], classes)[1]
    return head


@dataclass(frozen=True)
class FeatureServer:
    """The server's part of a round, and its federated features at the start.

    `fresh_head(r, head)` gives the head to start re-training from, the old one being at hand for a warm start;
    `retrain_batches(r)` numbers the features of every step of all epochs.

    CLIP2FL's contrast, `extra`, moves all features, also of classes that no client of the round has.
    Open in the specification: `match_eps` is added to the product of norms (1e-6, as released), and the bias is
    compared as one row (`match_bias=False` leaves it out).
    """

    features0: Vector
    fresh_head: Callable[[int, Vector], Vector]
    retrain_batches: Callable[[int], Iterable[ArrayLike]]
    match_steps: int = 100
    feature_lr: float = 0.1
    match_eps: float = 1e-6
    match_bias: bool = True
    retrain_lr: float = 0.01

    def match(
        self, features: Vector, head: Vector, real: dict[int, Vector], extra: Callable[[Vector], Vector] | None
    ) -> Vector:
        """Gradient steps on the features; a class without a real gradient is not matched."""
        for _ in range(self.match_steps):
            d = np.zeros_like(features) if extra is None else extra(features)
            for c, g in real.items():
                near = matching(head, features[c], c, g, len(features), self.match_eps, self.match_bias)
                d[c] = d[c] + near[1]
            features = features - self.feature_lr * d
        return features

    def retrained(self, r: int, features: Vector, head: Vector) -> Vector:
        start = np.asarray(self.fresh_head(r, head), dtype=np.float64)
        return retrain(start, features, self.retrain_batches(r), self.retrain_lr)
