"""Equiangular frames: fixed classifiers whose rows are as far apart as possible.

They depend on nothing but their size, so that server and clients make the same one without sending it.
"""

from functools import lru_cache

import numpy as np
import torch

from fedwcm.core.types import Floats

STEPS, RATE = 300, 0.01
"""Of the optimisation that spreads the rows of a sparse frame apart."""


def simplex(classes: int, width: int) -> Floats:
    """Return a simplex equiangular tight frame: unit rows `(C, width)`, each pair at the cosine −1/(C − 1).

    With fewer than C − 1 columns there is none: then the unit rows are as far apart as an optimiser makes them.
    """
    if width < classes - 1:
        return sparse_frame(classes, width, 0.0, 1.0)
    centred = np.eye(classes) - 1.0 / classes
    axes = np.linalg.svd(centred)[0][:, : classes - 1]
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(width, classes - 1)))[0]
    spread = axes @ rotation.T
    rows: Floats = spread / np.linalg.norm(spread, axis=1, keepdims=True)
    return rows


@lru_cache(maxsize=8)
def sparse_frame(classes: int, width: int, sparsity: float, norm: float) -> Floats:
    """Return rows of equal norm, a share of whose entries is 0, with angles made as large as that permits."""
    rng = np.random.default_rng(0)
    zeros = rng.permutation(classes * width).reshape(classes, width) < int(sparsity * classes * width)
    zeros[np.arange(classes), rng.integers(width, size=classes)] = False  # no row without an entry
    rows = torch.from_numpy(np.where(zeros, 0.0, rng.normal(size=(classes, width)))).requires_grad_()
    kept, optimizer = torch.from_numpy(~zeros), torch.optim.Adam([rows], lr=RATE)
    with torch.enable_grad():
        for _ in range(STEPS):
            unit = torch.nn.functional.normalize(rows * kept, dim=-1)
            nearest = (unit @ unit.T).fill_diagonal_(-1.0).amax(dim=-1)
            optimizer.zero_grad()
            nearest.mean().backward()
            optimizer.step()
    frame: Floats = norm * torch.nn.functional.normalize(rows.detach() * kept, dim=-1).numpy()
    return frame
