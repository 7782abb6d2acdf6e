"""CIFAR-10 and CIFAR-100, read from small files in the exact official layouts; hostile pickles."""

import hashlib
import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwcm.data import DATASETS, load_dataset
from fedwcm.data.formats.cifar_binary import read_cifar_binary
from tests.data.builders import Bytes, images, labels

CIFAR10_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
TEST_COUNT = 20


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDWCM_DATA", raising=False)


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
        read_cifar_binary(tmp_path, train=("train.bin",), test="test.bin", label_bytes=1)


PurePickler: Any = pickle._Pickler


class Python2Pickler(PurePickler):  # type: ignore[misc]
    """Write text and bytes as Python 2 strings, as the official pickles have them."""

    def save_string(self, value: str | bytes) -> None:
        data = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch = PurePickler.dispatch | {str: save_string, bytes: save_string}


def python2_pickle(value: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def python3_pickle(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


def read_python_archive(name: str, path: Path) -> Any:
    """Read a CIFAR archive of pickles with its own checksum in place of the published one."""
    layout: Any = next(layout for layout in DATASETS[name].layouts if layout.path == path.name)
    return layout.read(path, checksum=hashlib.md5(path.read_bytes()).hexdigest())


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
@pytest.mark.parametrize("order", ["C", "F"])
def test_cifar10_is_read_from_its_python_version(tmp_path: Path, dump: Any, order: Any) -> None:
    train, test = images(20, 32, 3), images(TEST_COUNT, 32, 3, seed=1)
    parts = {name: slice(4 * i, 4 * i + 4) for i, name in enumerate(CIFAR10_BATCHES)}
    batches = {name: (train[part], labels(20)[part]) for name, part in parts.items()}
    batches["test_batch"] = (test, labels(TEST_COUNT))
    members = {
        f"cifar-10-batches-py/{name}": dump(
            {
                "batch_label": f"{name} of 5",
                "labels": y.tolist(),
                "data": np.array(planes(x), order=order),
                "filenames": [f"photo_{i}.png" for i in range(len(x))],
            }
        )
        for name, (x, y) in batches.items()
    }
    write_tar(tmp_path / "cifar-10-python.tar.gz", members)
    read = read_python_archive("cifar10", tmp_path / "cifar-10-python.tar.gz")
    assert np.array_equal(read.train.x, train)
    assert np.array_equal(read.train.y, labels(20))
    assert np.array_equal(read.test.x, test)


def test_cifar100_takes_the_fine_label_from_its_python_version(tmp_path: Path) -> None:
    x, fine = images(30, 32, 3), labels(30, 100)
    batch = {"fine_labels": fine.tolist(), "coarse_labels": (fine // 5).tolist(), "data": planes(x)}
    members = {f"cifar-100-python/{part}": python2_pickle(batch) for part in ("train", "test")}
    write_tar(tmp_path / "cifar-100-python.tar.gz", members)
    read = read_python_archive("cifar100", tmp_path / "cifar-100-python.tar.gz")
    assert np.array_equal(read.train.y, fine)
    assert np.array_equal(read.test.x, x)


def test_a_python_archive_with_another_checksum_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"anything")
    with pytest.raises(ValueError, match="not the published c58f30108f718f92721af3b95e74349a"):
        load_dataset("cifar10", data_dir=tmp_path, download=False)


class Malicious:
    """When unpickled without a guard, makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


class MaliciousCode:
    """When unpickled without a guard, runs code."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (eval, (f"open({str(self.target)!r}, 'w')",))


@pytest.mark.parametrize("attack", [Malicious, MaliciousCode])
def test_a_malicious_pickle_is_refused_even_if_its_checksum_matches(tmp_path: Path, attack: Any) -> None:
    target = tmp_path / "owned"
    content = pickle.dumps({"labels": [0], "data": attack(target)}, protocol=2)
    pickle.loads(content)
    assert target.exists(), "the attack itself must work, or the test shows nothing"
    target.unlink()
    members = {f"cifar-10-batches-py/{name}": content for name in [*CIFAR10_BATCHES, "test_batch"]}
    write_tar(tmp_path / "cifar-10-python.tar.gz", members)
    with pytest.raises(ValueError, match="refused: the pickle asks for"):
        read_python_archive("cifar10", tmp_path / "cifar-10-python.tar.gz")
    assert not target.exists()


def test_a_pickled_array_of_objects_is_refused(tmp_path: Path) -> None:
    content = pickle.dumps({"labels": [0], "data": np.array([None])}, protocol=2)
    members = {f"cifar-10-batches-py/{name}": content for name in [*CIFAR10_BATCHES, "test_batch"]}
    write_tar(tmp_path / "cifar-10-python.tar.gz", members)
    with pytest.raises(ValueError, match="array of type 'O8'"):
        read_python_archive("cifar10", tmp_path / "cifar-10-python.tar.gz")
