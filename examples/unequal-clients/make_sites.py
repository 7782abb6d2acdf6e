"""Fifteen sites of very unequal size: Fashion-MNIST, long-tailed, with skewed labels at every site.

    python make_sites.py sites.npz
    fedwcm compare --dataset sites.npz --model mlp --methods fedavg,fedwcm,fedwcm-x --seeds 0,1,2 --rounds 30

The sites have 6 to 1,731 samples, in equal ratios. The classes of a site are drawn from a Dirichlet distribution
around a long tail; images are reduced to 14 × 14, so that a run takes seconds. The test set stays balanced.
"""

import sys

import numpy as np
from numpy.typing import NDArray

from fedwcm.data import load_dataset

SITES, SMALLEST, LARGEST = 15, 6, 1731
IMBALANCE, BETA, SEED = 0.05, 0.3, 0


def site_labels(classes: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return the number of samples of each class at every site."""
    tail = IMBALANCE ** (np.arange(classes) / (classes - 1))
    sizes = np.geomspace(SMALLEST, LARGEST, SITES).round().astype(int)
    return [rng.multinomial(n, rng.dirichlet(BETA * classes * tail / tail.sum())) for n in sizes]


def reduced(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images at half their size, as means over squares of four pixels."""
    quarters = images.reshape(len(images), 14, 2, 14, 2)
    return quarters.mean(axis=(2, 4)).round().astype(np.uint8)


def main(out: str) -> None:
    """Write the samples of all sites, and who has them, to a file."""
    data, rng = load_dataset("fashion-mnist"), np.random.default_rng(SEED)
    left = [rng.permutation(np.flatnonzero(data.y_train == c)) for c in range(data.num_classes)]
    rows, sites = [], []
    for site, counts in enumerate(site_labels(data.num_classes, rng)):
        for c, count in enumerate(counts):
            taken, left[c] = left[c][:count], left[c][count:]
            rows.append(taken)
            sites.append(np.full(count, site))
    chosen = np.concatenate(rows)
    np.savez(
        out,
        x_train=reduced(data.x_train[chosen]),
        y_train=data.y_train[chosen],
        client_train=np.concatenate(sites),
        x_test=reduced(data.x_test),
        y_test=data.y_test,
        classes=np.array(data.classes),
    )


if __name__ == "__main__":
    main(sys.argv[1])
