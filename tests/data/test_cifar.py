"""CIFAR-10 and CIFAR-100, read from small files in the exact official layouts."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwcm.data import load_dataset
from fedwcm.data.formats.published import read_cifar
from tests.data.builders import Bytes, images, labels

CIFAR10_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
TEST_COUNT = 20


def planes(pixels: Bytes) -> Bytes:
    """Lay out images as CIFAR does: per image the red plane, then green, then blue."""
    return pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def cifar10_members(folder: str) -> tuple[dict[str, bytes], Bytes, Bytes]:
    """Make the six binary files of CIFAR-10 with 4 images per training batch."""
    train, test = images(20, 32, 3), images(TEST_COUNT, 32, 3, seed=1)
    members: dict[str, bytes] = {f"{folder}batches.meta.txt": b"airplane\n"}
    for i, name in enumerate(CIFAR10_BATCHES):
        part = slice(4 * i, 4 * i + 4)
        members[f"{folder}{name}.bin"] = binary_records(train[part], [labels(20)[part]])
    members[f"{folder}test_batch.bin"] = binary_records(test, [labels(TEST_COUNT)])
    return members, train, test


def binary_records(x: Bytes, label_columns: list[NDArray[np.int64]]) -> bytes:
    columns = np.stack(label_columns, axis=1).astype(np.uint8)
    return np.concatenate([columns, planes(x)], axis=1).tobytes()


@pytest.mark.parametrize("packed", [True, False])
def test_cifar10_is_read_from_its_binary_version(tmp_path: Path, packed: bool) -> None:
    members, train, test = cifar10_members("cifar-10-batches-bin/")
    if packed:
        write_tar(tmp_path / "cifar-10-binary.tar.gz", members)
    else:
        (tmp_path / "cifar-10-batches-bin").mkdir()
        for name, content in members.items():
            (tmp_path / name).write_bytes(content)
    data = load_dataset("cifar10", data_dir=tmp_path, download=False)
    assert np.array_equal(data.x_train, train)
    assert np.array_equal(data.x_test, test)
    assert np.array_equal(data.y_train, labels(20))
    assert data.classes[:2] == ("airplane", "automobile")


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    x, fine = images(100, 32, 3), labels(100, 100)
    coarse = fine // 5
    members = {f"cifar-100-binary/{part}.bin": binary_records(x, [coarse, fine]) for part in ("train", "test")}
    write_tar(tmp_path / "cifar-100-binary.tar.gz", members)
    data = load_dataset("cifar100", data_dir=tmp_path, download=False)
    assert np.array_equal(data.y_train, fine)
    assert np.array_equal(data.x_train, x)
    assert len(set(data.classes)) == 100
    assert list(data.classes) == sorted(data.classes)


def test_a_cifar_archive_that_lacks_a_file_or_is_cut_off_is_refused(tmp_path: Path) -> None:
    members, _, _ = cifar10_members("cifar-10-batches-bin/")
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(path, {name: content for name, content in members.items() if "test" not in name})
    with pytest.raises(ValueError, match=r"lacks test_batch\.bin"):
        load_dataset("cifar10", data_dir=tmp_path, download=False)
    write_tar(path, members)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is damaged"):
        load_dataset("cifar10", data_dir=tmp_path, download=False)


def test_cifar_records_must_be_whole(tmp_path: Path) -> None:
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(b"\0" * 3074)
    with pytest.raises(ValueError, match="3074 bytes of samples are not a multiple of the record size 3073"):
        read_cifar(tmp_path, train=("train.bin",), test="test.bin", label_bytes=1)


def test_the_python_version_is_not_opened_and_the_binary_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"anything")
    with pytest.raises(FileNotFoundError, match=r"(?s)cifar-10-binary\.tar\.gz.*is pickles and not read"):
        load_dataset("cifar10", data_dir=tmp_path, download=False)
