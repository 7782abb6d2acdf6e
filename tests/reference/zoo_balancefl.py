"""BalanceFL's client: noise on the features of rare classes, and a loss that keeps the absent ones."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .zoo_grab import Mask
from .zoo_losses import Labels, Vector, balancefl_parts, perturb_probability
from .zoo_two_layer import Batch, Step, TwoLayer

Uniforms = Callable[[int, int, int, int], ArrayLike]  # of (client, round, step, n): n draws from [0, 1)
Noise = Callable[
    [int, int, int, Vector, Mask], ArrayLike
]  # of (client, round, step, Sigma, who): (n, d), rows of who


def feature_covariance(features: Vector, labels: Labels, ddof: int = 1) -> Vector:
    """Each local class's covariance, averaged with weights n_kc; a class of one sample counts with 0."""
    sigma = np.zeros((features.shape[1], features.shape[1]))
    for c in np.unique(labels):
        own = features[labels == c]
        if len(own) > ddof:
            sigma += len(own) / len(labels) * np.cov(own, rowvar=False, ddof=ddof).reshape(sigma.shape)
    return sigma


def covariance_root(features: Vector, labels: Labels) -> Vector:
    """Rows R (n, d) with R^T R = Sigma: a standard normal row vector times R is a draw from N(0, Sigma)."""
    rows = np.zeros_like(features)
    for c, n in zip(*np.unique(labels, return_counts=True), strict=True):
        own = features[labels == c]
        rows[labels == c] = (own - own.mean(axis=0)) * np.sqrt(n / (len(labels) * max(n - 1, 1)))
    return rows


class CyclicNoise:
    """A `Noise` that deals out vectors drawn once a round and client: `draw(k, r, Sigma, size)`.

    Who is perturbed takes the next rows. `wrap="restart"`, as released: a batch that would reach the buffer's
    end starts at 0 again; `"modulo"`: it goes on at 0 after the last row.
    """

    def __init__(self, draw: Callable[[int, int, Vector, int], ArrayLike], size: int = 500, wrap: str = "restart"):
        self.draw, self.size, self.wrap = draw, size, wrap
        self.owner: tuple[int, int] | None = None
        self.buffer, self.at = np.zeros((0, 0)), 0

    def __call__(self, k: int, r: int, b: int, sigma: Vector, who: Mask) -> Vector:
        if self.owner != (k, r):
            self.owner, self.at = (k, r), 0
            self.buffer = np.asarray(self.draw(k, r, sigma, self.size), dtype=np.float64)
        count = int(who.sum())
        if self.wrap == "restart" and count and self.at + count >= self.size:
            self.at = 0
        rows = np.zeros((len(who), sigma.shape[0]))
        rows[who] = self.buffer[(self.at + np.arange(count)) % self.size]
        self.at += count
        return rows


@dataclass(frozen=True)
class BalanceFL:
    """The client's part of BalanceFL, items 1 to 3; the balanced sampler (item 1) is in the batches.

    A sample is perturbed where its uniform draw is below 1 - n_kc / max n_kc, in the batch's order. Sigma is
    of the received model's features of the client's plain inputs, once a round. Open in the specification:
    `ddof` 1 for the covariance; P of the mini-batch (`present="batch"`) or of the client's data (`"client"`);
    `logit_scale` 1, the authors' own network having 2. `handed` says what `noise` is made of: Sigma
    ("covariance"), or a root of it of one row a sample ("root").
    """

    uniforms: Uniforms
    noise: Noise
    ddof: int = 1
    present: str = "batch"
    logit_scale: float = 1.0
    lam: float = 1.0
    temperature: float = 2.0
    entropy_weight: float = 0.002
    entropy_reduction: str = "sum"
    handed: str = "covariance"

    def step(self, net: TwoLayer, k: int, r: int, x: Vector, data: tuple[Vector, Labels]) -> Step:
        """The gradient of client k, which received x."""
        received = net.features(x, data[0])
        root = self.handed == "root"
        sigma = covariance_root(received, data[1]) if root else feature_covariance(received, data[1], self.ddof)
        chance = perturb_probability(np.bincount(data[1], minlength=net.classes))
        weights = (self.lam, self.temperature, self.entropy_weight, self.entropy_reduction)
        known = data[1] if self.present == "client" else None

        def gradient(batch: Batch, y: Vector) -> Vector:
            b, _, inputs, labels = batch
            who = np.asarray(self.uniforms(k, r, b, len(labels))) < chance[labels]
            shift = np.where(who[:, None], np.asarray(self.noise(k, r, b, sigma, who)), 0.0)
            f = net.features(y, inputs)
            noisy, plain = (self.logit_scale * net.classify(net.head(y), v) for v in (f + shift, f))
            teacher = self.logit_scale * net.logits(x, inputs)
            _, d_noisy, d_plain = balancefl_parts(noisy, plain, teacher, labels, *weights, known)
            return self.logit_scale * net.backward(y, inputs, d_plain, shift, d_noisy)

        return gradient
