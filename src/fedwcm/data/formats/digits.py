"""The handwritten digits that come with the package: those of scikit-learn's `load_digits`.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (CC BY 4.0).
"""

from pathlib import Path

import numpy as np

from fedwcm.data.samples import Parts, Samples
from fedwcm.data.split import stratified_split

FILE = Path(__file__).with_name("digits.npz")
LEVELS = 16
TEST_FRACTION = 0.2
SPLIT_SEED = 0


def read_digits() -> Parts:
    """Return the 1797 grey 8x8 images, pixel levels 0..16 stretched to 0..255.

    The set has no official test part. A fifth of each class is one, drawn with a fixed seed, so that every
    run of every experiment is measured on the same images.
    """
    with np.load(FILE, allow_pickle=False) as stored:
        levels, labels = stored["pixels"], stored["labels"].astype(np.int64)
    images = np.rint(levels * (255 / LEVELS)).astype(np.uint8)[..., np.newaxis]
    samples = Samples(images, labels)
    keep, held_out = stratified_split(labels, TEST_FRACTION, np.random.default_rng(SPLIT_SEED))
    return Parts(samples.take(keep), samples.take(held_out))
