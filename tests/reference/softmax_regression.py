"""Multinomial logistic regression in NumPy float64, laid out like a flattened `torch.nn.Linear`."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def loss_gradient(w_flat: Vector, inputs: Vector, labels: NDArray[np.int64], classes: int) -> tuple[float, Vector]:
    """Mean cross-entropy and its gradient.

    `w_flat` is the weight (classes, d) row by row, then the bias (classes,); the gradient has that layout.
    """
    n, d = inputs.shape
    weight = w_flat[: classes * d].reshape(classes, d)
    bias = w_flat[classes * d :]

    logits = inputs @ weight.T + bias
    logits = logits - logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    loss = -float(log_p[np.arange(n), labels].mean())

    error = np.exp(log_p)  # d loss / d logits = (p - onehot) / n
    error[np.arange(n), labels] -= 1.0
    error /= n
    return loss, np.concatenate([(error.T @ inputs).ravel(), error.sum(axis=0)])
