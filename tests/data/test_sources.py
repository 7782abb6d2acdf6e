"""The named datasets, read from small files in the exact official layouts."""

import gzip
import hashlib
import re
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedwcm.data import DATASETS, load_dataset, stratified_split
from fedwcm.data.formats import published
from fedwcm.data.formats.published import read_idx
from fedwcm.data.named import DEBIAN_FOLDER, data_folders, read_named, user_cache
from tests.data.builders import Bytes, images, labels

TEST_COUNT = 20


# digits -------------------------------------------------------------------------------------------


def test_digits_are_those_of_scikit_learn_stretched_to_a_byte() -> None:
    from sklearn.datasets import load_digits

    digits, data = load_digits(), load_dataset("digits")
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    keep, held_out = stratified_split(digits.target, 0.2, np.random.default_rng(0))
    assert np.array_equal(data.x_train, images[keep])
    assert np.array_equal(data.x_test, images[held_out])
    assert np.array_equal(data.y_train, digits.target[keep])
    assert np.array_equal(data.x_test, load_dataset("digits", seed=7).x_test), "always the same split"


# Fashion-MNIST ------------------------------------------------------------------------------------


def idx_bytes(array: Bytes) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_fashion(folder: Path, gz: bool) -> tuple[Bytes, Bytes]:
    train, test = images(30, 28, 1), images(TEST_COUNT, 28, 1, seed=1)
    folder.mkdir(parents=True)
    for prefix, x in (("train", train), ("t10k", test)):
        y = labels(len(x)).astype(np.uint8)
        for kind, content in (("images-idx3", x[..., 0]), ("labels-idx1", y)):
            data = idx_bytes(content)
            name = f"{prefix}-{kind}-ubyte"
            (folder / (f"{name}.gz" if gz else name)).write_bytes(gzip.compress(data) if gz else data)
    return train, test


@pytest.mark.parametrize("gz", [True, False])
def test_fashion_mnist_is_read_from_idx_files(tmp_path: Path, gz: bool) -> None:
    train, test = write_fashion(tmp_path / "fashion-mnist", gz)
    data = load_dataset("fashion-mnist", data_dir=tmp_path, download=False)
    assert np.array_equal(data.x_train, train)
    assert np.array_equal(data.x_test, test)
    assert np.array_equal(data.y_train, labels(30))
    assert data.classes[9] == "Ankle boot"
    assert data.x_train.flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\x0d\x01\0\0\0\x01\0", "not an IDX file of unsigned bytes"),
        (idx_bytes(np.zeros((2, 3), np.uint8))[:-1], "does not fit its shape"),
        (b"\0\0\x08\x03\0\0", "ends inside its header"),
    ],
)
def test_a_wrong_idx_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(path)


# SVHN ---------------------------------------------------------------------------------------------


def test_svhn_reads_label_10_as_digit_0_and_no_file_but_the_published_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy.io import savemat

    x, y = images(20, 32, 3), labels(20)
    (tmp_path / "svhn").mkdir()
    digests = {}
    for name in published.SVHN_CHECKSUMS:
        stored = np.where(y == 0, 10, y).astype(np.uint8).reshape(-1, 1)
        savemat(tmp_path / "svhn" / name, {"X": x.transpose(1, 2, 3, 0), "y": stored})
        digests[name] = hashlib.md5((tmp_path / "svhn" / name).read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=r"train_32x32\.mat has MD5 .*, not the published e26dedcc"):
        load_dataset("svhn", data_dir=tmp_path, download=False)
    monkeypatch.setattr(published, "SVHN_CHECKSUMS", digests)
    data = load_dataset("svhn", data_dir=tmp_path, download=False)
    assert np.array_equal(data.x_train, x)
    assert np.array_equal(data.y_test, y)


# Tiny ImageNet ------------------------------------------------------------------------------------

WNIDS = ("n02000003", "n02000001", "n02000002")


def write_tiny_imagenet(folder: Path) -> None:
    """Write 3 classes of flat images: training brightness tells class and number, and one image is grey."""
    for index, wnid in enumerate(sorted(WNIDS)):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        for i in range(2):
            mode = "L" if (index, i) == (1, 1) else "RGB"
            colour = 60 * index + 20 * i
            image = Image.new(mode, (64, 64), colour if mode == "L" else (colour, colour, colour))
            image.save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "test" / "images").mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(folder / "test/images/test_0.JPEG")
    lines = []
    for i, wnid in enumerate(WNIDS):
        Image.new("RGB", (64, 64), (200, 0, 0)).save(folder / f"val/images/val_{i}.JPEG")
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in WNIDS))
    (folder / "words.txt").write_text("")


@pytest.mark.parametrize("packed", [True, False])
def test_tiny_imagenet_takes_val_as_test_and_grey_images_as_colour(tmp_path: Path, packed: bool) -> None:
    tree = tmp_path / ("source" if packed else "data") / "tiny-imagenet-200"
    write_tiny_imagenet(tree)
    (tmp_path / "data").mkdir(exist_ok=True)
    if packed:
        with zipfile.ZipFile(tmp_path / "data/tiny-imagenet-200.zip", "w") as archive:
            for file in sorted(tree.rglob("*")):
                archive.write(file, file.relative_to(tree.parent))
    entry = replace(DATASETS["tiny-imagenet"], num_classes=3)
    parts = read_named("tiny-imagenet", entry, [tmp_path / "data"], None)
    assert parts.classes == tuple(sorted(WNIDS))
    assert list(parts.train.y) == [wnid for wnid in sorted(WNIDS) for _ in range(2)]  # type: ignore[arg-type]
    assert parts.train.x.shape == (6, 64, 64, 3)
    assert parts.train.x[:, 0, 0, 0] == pytest.approx([0, 20, 60, 80, 120, 140], abs=2)
    assert np.ptp(parts.train.x, axis=3).max() <= 2
    assert "test" in parts.parts
    assert list(parts.parts["test"].y) == list(WNIDS)  # type: ignore[arg-type]


def test_a_named_dataset_of_another_size_is_refused(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    with pytest.raises(ValueError, match="holds 3 classes"):
        load_dataset("tiny-imagenet", data_dir=tmp_path, download=False)


# Where data is looked for -------------------------------------------------------------------------


def write_cifar10_npz(folder: Path, shade: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    x = np.full((10, 32, 32, 3), shade, np.uint8)
    np.savez(folder / "cifar10.npz", x_train=x, y_train=labels(10), x_test=x, y_test=labels(10))


def test_folders_are_searched_in_the_documented_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWCM_DATA", str(tmp_path / "environment"))
    given = tmp_path / "given"
    assert data_folders(given) == (given, tmp_path / "environment", user_cache(), DEBIAN_FOLDER)
    for shade, folder in ((3, user_cache()), (2, tmp_path / "environment"), (1, given)):
        write_cifar10_npz(folder, shade)
        data = load_dataset("cifar10", data_dir=given, download=False)
        assert (data.x_train == shade).all()
    assert (load_dataset("cifar10", download=False).x_train == 2).all()


@pytest.mark.parametrize("shape", [(10, 28, 28, 3), (10, 3072)])
def test_an_npz_that_is_not_what_its_name_says_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=labels(10), x_test=x, y_test=labels(10))
    with pytest.raises(ValueError, match=r"cifar10\.npz.* holds 10 classes of shape"):
        load_dataset("cifar10", data_dir=tmp_path, download=False)


def test_a_named_dataset_has_no_columns() -> None:
    with pytest.raises(ValueError, match=r"--label y .*digits"):
        load_dataset("digits", label="y")


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(FileNotFoundError, match="did you mean 'cifar10'"):
        load_dataset("cifar-10")
    with pytest.raises(FileNotFoundError, match="did you mean 'fashion-mnist'"):
        load_dataset("FashionMNIST")


def test_the_catalogue_agrees_with_itself() -> None:
    for name, entry in DATASETS.items():
        assert entry.classes is None or len(entry.classes) == entry.num_classes
        assert (entry.embedded is None) == bool(entry.layouts) == bool(entry.downloads), name
        assert all(re.fullmatch("md5:[0-9a-f]{32}", file.checksum) for file in entry.downloads), name
