"""The Python version of CIFAR: an archive of pickles.

A pickle can run any code, so two gates stand before it. The archive must have the published checksum, and the
pickles are not run: `pickled` reads the data in them and refuses everything else.
"""

from pathlib import Path

import numpy as np

from fedwcm.data.formats.archive import read_members
from fedwcm.data.formats.cifar_binary import IMAGE_BYTES, images_from_planes
from fedwcm.data.formats.pickled import ByteArray, read_pickled
from fedwcm.data.samples import Parts, Samples


def read_cifar_python(archive: Path, *, train: tuple[str, ...], test: str, label_key: str, checksum: str) -> Parts:
    """Read the named pickles of the archive, if it has the published MD5 checksum."""
    import pooch

    actual = pooch.file_hash(str(archive), alg="md5")
    if actual != checksum:
        raise ValueError(
            f"{archive} has MD5 {actual}, not the published {checksum}: a pickle that is not the published "
            "one is never opened. Download it again, or use the binary version"
        )
    members = read_members(archive, (*train, test))
    batches = [_read_batch(name, members[name], label_key) for name in train]
    joined = Samples(np.concatenate([b.x for b in batches]), np.concatenate([b.y for b in batches]))
    return Parts(joined, _read_batch(test, members[test], label_key))


def _read_batch(name: str, data: bytes, label_key: str) -> Samples:
    batch = read_pickled(data)
    images = batch.get("data") if isinstance(batch, dict) else None
    labels = batch.get(label_key) if isinstance(batch, dict) else None
    if not isinstance(images, ByteArray) or images.values.size % IMAGE_BYTES:
        raise ValueError(f"{name} holds no 'data' of images of {IMAGE_BYTES} bytes")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise ValueError(f"{name} holds no list of integers {label_key!r}")
    return Samples(images_from_planes(images.values.reshape(-1, IMAGE_BYTES)), np.array(labels, dtype=np.int64))
