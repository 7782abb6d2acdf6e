"""The handwritten digits that come with scikit-learn."""

import numpy as np

from fedwcm.data.samples import Parts, Samples
from fedwcm.data.split import stratified_split

LEVELS = 16
TEST_FRACTION = 0.2
SPLIT_SEED = 0


def read_digits() -> Parts:
    """Return the 1797 grey 8x8 images, pixel levels 0..16 stretched to 0..255.

    The set has no official test part. A fifth of each class is one, drawn with a fixed seed, so that every
    run of every experiment is measured on the same images.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / LEVELS)).astype(np.uint8)[..., np.newaxis]
    samples = Samples(images, digits.target.astype(np.int64))
    keep, held_out = stratified_split(samples.labels, TEST_FRACTION, np.random.default_rng(SPLIT_SEED))
    return Parts(samples.take(keep), samples.take(held_out))
