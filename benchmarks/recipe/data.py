"""Small copies of three image sets: one to choose on, one to judge on, one for the last judgement.

    python -m benchmarks.recipe.data --data-dir DIR --cifar100 FILE

DIR is where the named data sets `fashion-mnist` and `cifar10` are looked for first (see docs/data.md), FILE an
.npz with `x_train, y_train, x_test, y_test` of CIFAR-100 or a part of it. `NAME-choose.npz` holds no test image:
what it calls its test part are training images, 200 of each class, taken out before the long tail is made.
`NAME-judge.npz` has 1,000 training images and 300 test images of each class, or all if there are fewer.
`NAME-final.npz` has none of the images of the other two: 1,000 other training images and the other 700 test
images of each class. CIFAR-100's file is too small for that, and has no `final`.

Fashion-MNIST is halved in size by averaging 2x2 pixels. Of CIFAR, `NAME-choose` and `NAME-judge` hold fixed
features instead of images: the responses to 128 random whitened patches of training images, rectified and averaged
over the quadrants (Coates, Lee, Ng, AISTATS 2011), on which a small network is trained in seconds.
`cifar10-image-judge` holds the images, halved, for a convolutional network.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, unfold

from benchmarks.jobs import CACHE
from fedwcm.core.types import Ints
from fedwcm.data import load_dataset

FOLDER = CACHE / "recipe"
HELD_OUT, TRAINED, TESTED = 200, 1000, 300
UNSEEN = HELD_OUT + TRAINED
"""The first training image of a class that neither choosing nor judging has."""
PATCH, FILTERS, THRESHOLD = 6, 128, 0.5
Images = NDArray[Any]


def halved(images: Images) -> NDArray[np.uint8]:
    """Return images `(n, h, w, channels)` at half the size."""
    n, height, width, channels = images.shape
    blocks = images.reshape(n, height // 2, 2, width // 2, 2, channels)
    means: NDArray[np.float32] = np.rint(blocks.mean(axis=(2, 4), dtype=np.float32))
    return means.astype(np.uint8)


class PatchFeatures:
    """Responses to random whitened patches of training images, averaged over the quadrants of an image."""

    def __init__(self, images: Images) -> None:
        rng = np.random.default_rng(0)
        some = torch.from_numpy(images[rng.choice(len(images), 2000, replace=False)])
        patches = _patches(some).reshape(-1, PATCH * PATCH * 3)
        patches = _contrast(patches[torch.from_numpy(rng.choice(len(patches), 40_000, replace=False))])
        self.mean = patches.mean(dim=0)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T))
        self.whiten = vectors * (values + 0.1).rsqrt() @ vectors.T
        chosen = (patches[:FILTERS] - self.mean) @ self.whiten
        self.filters = chosen / chosen.norm(dim=1, keepdim=True)

    def __call__(self, images: Images) -> NDArray[np.float32]:
        chunks = [self._features(torch.from_numpy(images[i : i + 200])) for i in range(0, len(images), 200)]
        features: NDArray[np.float32] = torch.cat(chunks).numpy()
        return features

    def _features(self, images: Tensor) -> Tensor:
        patches = _contrast(_patches(images))
        responses = (((patches - self.mean) @ self.whiten) @ self.filters.T - THRESHOLD).relu()
        side = round(responses.shape[1] ** 0.5)
        return adaptive_avg_pool2d(responses.mT.unflatten(2, (side, side)), 2).flatten(start_dim=1)


def _patches(images: Tensor) -> Tensor:
    """Return the patches of images `(n, h, w, 3)` at every second pixel, `(n, positions, values)`."""
    return unfold(images.permute(0, 3, 1, 2).float(), PATCH, stride=2).mT


def _contrast(patches: Tensor) -> Tensor:
    centred = patches - patches.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 10.0).sqrt()


def first_of_each_class(labels: Ints, start: int, stop: int) -> Ints:
    """Return the rows of some samples of each class, counted in the order of the file."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[start:stop] for c in np.unique(labels)]))


def save(name: str, train: tuple[Images, Ints], test: tuple[Images, Ints]) -> None:
    """Write a file."""
    np.savez(FOLDER / f"{name}.npz", x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])


def write(
    name: str, train: tuple[Images, Ints], test: tuple[Images, Ints], features: bool, phases: Sequence[str]
) -> None:
    """Write the files of a data set for these phases."""
    made = PatchFeatures(train[0]) if features else halved
    rows = {
        "choose": (train, HELD_OUT, UNSEEN, train, 0, HELD_OUT),
        "judge": (train, 0, TRAINED, test, 0, TESTED),
        "final": (train, UNSEEN, UNSEEN + TRAINED, test, TESTED, len(test[1])),
    }

    def part(of: tuple[Images, Ints], start: int, stop: int) -> tuple[Images, Ints]:
        rows = first_of_each_class(of[1], start, stop)
        return made(of[0][rows]), of[1][rows]

    for phase in phases:
        trained, first, last, tested, start, stop = rows[phase]
        save(f"{name}-{phase}", part(trained, first, last), part(tested, start, stop))


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data-dir", help="folder to search first for fashion-mnist and cifar10")
    parser.add_argument("--cifar100", type=Path, help=".npz file of CIFAR-100 or a part of it")
    chosen = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name in ("fashion-mnist", "cifar10"):
        found = load_dataset(name, data_dir=chosen.data_dir)
        train, test = (found.x_train, found.y_train), (found.x_test, found.y_test)
        write(name, train, test, features=name == "cifar10", phases=("choose", "judge", "final"))
        if name == "cifar10":
            write("cifar10-image", train, test, features=False, phases=("judge", "final"))
    if chosen.cifar100:
        with np.load(chosen.cifar100) as arrays:
            train, test = ((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
        write("cifar100", train, test, features=True, phases=("judge",))


if __name__ == "__main__":
    main()
