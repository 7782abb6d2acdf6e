"""Perturbations of a given length along each client's direction, for sharpness-aware steps."""

import torch
from torch import Tensor

TINY = 1e-7
"""Added to a norm, so that a zero direction stays zero instead of dividing 0 by 0."""


def scale_to(length: float, norms: Tensor) -> Tensor:
    """Return the factors that scale directions of these norms to this length."""
    return torch.reciprocal(norms + TINY).mul_(length)


def perturbation_scale(directions: Tensor, rho: float) -> Tensor:
    """Return the factors `(K, 1)` that scale each client's direction to length rho."""
    return scale_to(rho, torch.linalg.vector_norm(directions, dim=-1, keepdim=True))


def perturbation(direction: Tensor, rho: float) -> Tensor:
    """Return the vector of length rho along each client's direction; zero where the direction is zero."""
    return direction * perturbation_scale(direction, rho)
