"""The example of clients of very unequal size."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from fedwcm.data import load_dataset

SCRIPT = Path(__file__).parents[1] / "examples" / "unequal-clients" / "make_sites.py"


def test_it_writes_sites_of_unequal_size_that_share_no_image(tmp_path: Path) -> None:
    labels = np.arange(4000) % 10
    images = np.zeros((4000, 28, 28), dtype=np.uint8)
    images[:, :2, :2] = (np.arange(4000) // 16)[:, None, None]  # after the reduction, a number of each image
    images[:, 2:4, :2] = (np.arange(4000) % 16)[:, None, None]
    made = runpy.run_path(str(SCRIPT))
    script = made["main"].__globals__
    names = [str(c) for c in range(10)]
    script["load_dataset"] = lambda name: SimpleNamespace(
        x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20], classes=names, num_classes=10
    )
    script["LARGEST"] = 160
    script["main"](str(tmp_path / "sites.npz"))
    data = load_dataset(tmp_path / "sites.npz")
    assert data.client_ids is not None
    sizes = np.unique(data.client_ids, return_counts=True)[1]
    assert len(sizes) == 15
    assert (sizes.min(), sizes.max()) == (6, 160)
    assert len(np.unique(data.x_train.reshape(len(data.x_train), -1), axis=0)) == sizes.sum()
