"""The files in which the named data sets are published."""

import math
import struct
import tarfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.formats.safety import open_maybe_gzip, require_bounded, require_inside
from fedwcm.data.raw import RawSplits, Samples
from fedwcm.data.split import stratified_split

DIGITS_FILE = Path(__file__).with_name("digits.npz")
DIGITS_LEVELS, DIGITS_TEST_FRACTION, DIGITS_SEED = 16, 0.2, 0

IDX_UINT8 = 0x08
IDX_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
IDX_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

CIFAR_SIDE = 32
CIFAR_BYTES = 3 * CIFAR_SIDE * CIFAR_SIDE

SVHN_CHECKSUMS = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}

TINY_ROOT = "tiny-imagenet-200/"
TINY_CLASSES = "wnids.txt"
TINY_ANNOTATIONS = "val/val_annotations.txt"

ReadFile = Callable[[str], bytes]


def read_digits() -> RawSplits:
    """Return the 1797 grey 8x8 images of scikit-learn's `load_digits`, pixel levels 0..16 stretched to 0..255.

    The set has no official test part. A fifth of each class is one, drawn with a fixed seed, so that every
    run of every experiment is measured on the same images.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (CC BY 4.0).
    """
    with np.load(DIGITS_FILE, allow_pickle=False) as stored:
        levels, labels = stored["pixels"], stored["labels"].astype(np.int64)
    images = np.rint(levels * (255 / DIGITS_LEVELS)).astype(np.uint8)[..., np.newaxis]
    samples = Samples(images, labels)
    keep, held_out = stratified_split(labels, DIGITS_TEST_FRACTION, np.random.default_rng(DIGITS_SEED))
    return RawSplits({"train": samples.take(keep), "test": samples.take(held_out)})


def read_idx_folder(folder: Path) -> RawSplits:
    """Read the four files of an MNIST-like dataset, each plain or with `.gz`."""
    files = {"train": IDX_TRAIN, "test": IDX_TEST}
    content = {part: [read_idx(_plain_or_gz(folder / name)) for name in names] for part, names in files.items()}
    return RawSplits({part: Samples(x[..., np.newaxis], y) for part, (x, y) in content.items()})


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read one file of unsigned bytes in the IDX format: a short header, then raw bytes; often gzipped."""
    with open_maybe_gzip(path) as stream:
        data = stream.read()
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != IDX_UINT8:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes: it begins with {data[:4].hex()}")
    dims = data[3]
    header = 4 + 4 * dims
    if len(data) < header:
        raise ValueError(f"{path} ends inside its header")
    shape = struct.unpack(f">{dims}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise ValueError(f"{path} holds {len(data) - header} bytes, which does not fit its shape {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape).copy()


def _plain_or_gz(path: Path) -> Path:
    return path if path.exists() else path.with_name(path.name + ".gz")


def read_cifar(path: Path, *, train: tuple[str, ...], test: str, label_bytes: int) -> RawSplits:
    """Read the named binary files of a folder or archive; of several label bytes the last (the finest) counts."""
    members = read_members(path, (*train, test))
    content = {"train": b"".join(members[name] for name in train), "test": members[test]}
    return RawSplits({part: _cifar_records(path, data, label_bytes) for part, data in content.items()})


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the content of each named file of a folder, or of a tar archive whatever its inner folder.

    An archive may be gzipped. Links in it are ignored, it is read once from end to end, and nothing is unpacked
    to disk.
    """
    if path.is_dir():
        return {name: (path / name).read_bytes() for name in names}
    contents: dict[str, bytes] = {}
    with open_maybe_gzip(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            name = PurePosixPath(member.name).name
            if name in names and member.isreg() and (content := archive.extractfile(member)) is not None:
                contents[name] = content.read()
    missing = [name for name in names if name not in contents]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    return contents


def _cifar_records(path: Path, data: bytes, label_bytes: int) -> Samples:
    """Read records of label bytes followed by an image, its red, green and blue plane."""
    size = label_bytes + CIFAR_BYTES
    if len(data) % size:
        raise ValueError(f"{path}: {len(data)} bytes of samples are not a multiple of the record size {size}")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    planes = records[:, label_bytes:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE)
    return Samples(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, label_bytes - 1])


def read_svhn(folder: Path) -> RawSplits:
    """Read the two MATLAB files of cropped digits, which write digit 0 as label 10.

    They must have the published checksums: a garbled file can crash scipy's reader, which is compiled code.
    """
    import pooch
    from scipy.io import loadmat

    parts = []
    for name, published in SVHN_CHECKSUMS.items():
        path = folder / name
        if (actual := pooch.file_hash(str(path), alg="md5")) != published:
            raise ValueError(
                f"{path} has MD5 {actual}, not the published {published}, and is not opened: download it "
                "again, or give the data as svhn.npz"
            )
        content = loadmat(path, variable_names=("X", "y"))
        images = np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2))
        parts.append(Samples(images, content["y"].reshape(-1).astype(np.int64) % 10))
    return RawSplits(dict(zip(("train", "test"), parts, strict=True)))


def read_tiny_imagenet(path: Path) -> RawSplits:
    """Read train, and val as test (the official test part has no labels), of the folder or its zip archive.

    Classes are WordNet ids, sorted. A few images are grey; they are stacked as colour images like the rest.
    """
    if path.is_dir():
        files = [file.relative_to(path).as_posix() for file in path.glob("train/*/images/*.JPEG")]
        return _read_tiny(files, lambda name: require_inside(path, path / name).read_bytes())
    with ZipFile(path) as archive:
        require_bounded(str(path), sum(entry.file_size for entry in archive.infolist()), path.stat().st_size)
        files = [name.removeprefix(TINY_ROOT) for name in archive.namelist()]
        return _read_tiny(files, lambda name: archive.read(TINY_ROOT + name))


def _read_tiny(files: Sequence[str], read: ReadFile) -> RawSplits:
    classes = tuple(sorted(read(TINY_CLASSES).decode().split()))
    images = [name for name in sorted(files) if PurePosixPath(name).match("train/*/images/*.JPEG")]
    rows = [line.split("\t") for line in read(TINY_ANNOTATIONS).decode().splitlines()]
    for i, row in enumerate(rows):
        if len(row) < 2:
            raise ValueError(
                f"{TINY_ANNOTATIONS}, line {i + 1}: it must hold a file and its class, divided by a tab"
            )
    train = _stack_files(images, [PurePosixPath(name).parts[1] for name in images], read)
    test = _stack_files([f"val/images/{row[0]}" for row in rows], [row[1] for row in rows], read)
    return RawSplits({"train": train, "test": test}, classes)


def _stack_files(names: Sequence[str], labels: Sequence[str], read: ReadFile) -> Samples:
    from fedwcm.data.formats.images import open_image, stack_images  # need Pillow, which other sets do not

    images = ((name, open_image(name, read(name))) for name in names)
    return Samples(stack_images(images, len(names)), np.array(labels))
