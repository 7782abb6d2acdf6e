"""Files made to do harm: bombs, lying headers, links that lead away, programs."""

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from fedwcm.data import load_dataset
from fedwcm.data.formats import images, safety
from fedwcm.data.formats.published import read_idx, read_members, read_tiny_imagenet
from tests.data.builders import images as random_images

BOMB = "decompression bomb"
MIB = 2**20


@pytest.fixture
def _small_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bombs of a few megabytes are enough to show that they are refused."""
    monkeypatch.setattr(safety, "FLOOR", MIB)


def test_bounds_are_relative_above_a_floor_and_end_at_a_ceiling() -> None:
    assert safety.allowed_bytes(0) == safety.FLOOR
    assert safety.allowed_bytes(safety.FLOOR) == safety.RATIO * safety.FLOOR
    assert safety.allowed_bytes(2**60) == safety.CEILING


class Endless:
    """A stream without end that keeps in mind how much it was asked for at most."""

    largest = 0

    def read(self, size: int = -1, /) -> bytes:
        self.largest = max(self.largest, size)
        assert size >= 0, "all of it at once would never end"
        return bytes(size)


@pytest.mark.usefixtures("_small_floor")
@pytest.mark.parametrize("size", [-1, 2**40])
def test_no_more_is_unpacked_than_it_takes_to_see_a_bomb(size: int) -> None:
    stream = Endless()
    with pytest.raises(ValueError, match=BOMB):
        safety.BoundedReader(stream, "x", 10).read(size)
    assert stream.largest == MIB + 1


# Bombs --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_small_floor")
def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 20 * MIB) + bytes(20 * MIB)))
    with pytest.raises(ValueError, match=f"x.gz holds .* {BOMB}"):
        read_idx(path)


@pytest.mark.usefixtures("_small_floor")
@pytest.mark.parametrize("name", ["wanted", "passed over"])
def test_a_tar_bomb_is_refused_even_where_it_is_only_passed_over(tmp_path: Path, name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = 20 * MIB
        archive.addfile(info, io.BytesIO(bytes(20 * MIB)))
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(buffer.getvalue()))
    with pytest.raises(ValueError, match=BOMB):
        read_members(tmp_path / "a.tar.gz", ["wanted"])


@pytest.mark.usefixtures("_small_floor")
def test_an_npz_bomb_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "own.npz", x=np.zeros((MIB, 20), np.uint8), y=np.zeros(MIB, np.uint8))
    with pytest.raises(ValueError, match=f"own.npz holds .* {BOMB}"):
        load_dataset(tmp_path / "own.npz")
    np.savez(tmp_path / "own.npz", x=np.zeros((MIB, 2), np.uint8), y=np.arange(MIB) % 2)
    assert len(load_dataset(tmp_path / "own.npz").y_train) > MIB // 2, "what is stored as it is, is no bomb"


@pytest.mark.usefixtures("_small_floor")
def test_a_parquet_file_that_claims_too_many_rows_is_refused(tmp_path: Path) -> None:
    count = 4 * MIB
    table = pa.table({"x": np.zeros(count), "y": np.zeros(count, np.int8)})
    parquet.write_table(table, tmp_path / "own.parquet")
    with pytest.raises(ValueError, match=f"own.parquet holds .* {BOMB}"):
        load_dataset(tmp_path / "own.parquet", label="y")


@pytest.mark.usefixtures("_small_floor")
def test_an_image_of_one_colour_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (4000, 4000)).save(tmp_path / "a/0.png")
    with pytest.raises(ValueError, match=rf"0\.png holds .* {BOMB}"):
        load_dataset(tmp_path)


def test_an_image_that_claims_too_many_pixels_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 99)
    (tmp_path / "a").mkdir()
    Image.new("L", (10, 10)).save(tmp_path / "a/0.png")
    with pytest.raises(ValueError, match=r"0\.png has 10x10 pixels: at most 99"):
        load_dataset(tmp_path)


@pytest.mark.usefixtures("_small_floor")
def test_many_images_that_are_small_on_disk_only_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(20):
        Image.new("L", (900, 900)).save(tmp_path / f"a/{i}.png")
    with pytest.raises(ValueError, match=BOMB):
        load_dataset(tmp_path)


# Lying headers ------------------------------------------------------------------------------------


def write_npz(path: Path, header: str, body: bytes = bytes(16)) -> None:
    text = header.encode().ljust(118 - 1) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        for key in ("x", "y"):
            archive.writestr(f"{key}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}", "16 bytes, which do not fit"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -2)}", "do not fit its shape"),
        ("{'descr': '<U99999999', 'fortran_order': False, 'shape': (9,)}", "do not fit its shape"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", "Python objects are not read"),
        ("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2,)}", "hold numbers or text"),
        ("__import__('os').abort()", "no readable header"),
        ("-" * 100 + "1", "no readable header"),
        ("(" * 100 + ")" * 100, "no readable header"),
    ],
)
def test_an_npz_header_that_lies_is_refused_before_memory_is_taken(
    tmp_path: Path, header: str, message: str
) -> None:
    write_npz(tmp_path / "own.npz", header)
    with pytest.raises(ValueError, match=f"own.npz: array 'x' .*{message}"):
        load_dataset(tmp_path / "own.npz")


@pytest.mark.parametrize("code", [0x110000, 0xFFFFFFFF, 0xD800])
def test_text_of_characters_that_do_not_exist_is_refused(tmp_path: Path, code: int) -> None:
    y = np.array([code, ord("a")] * 5, np.uint32).view("<U1")
    np.savez(tmp_path / "own.npz", x=np.zeros((10, 2)), y=y)
    with pytest.raises(ValueError, match="array 'y' holds text with characters that do not exist"):
        load_dataset(tmp_path / "own.npz")


# Where files lie ----------------------------------------------------------------------------------


def test_links_do_not_lead_out_of_an_image_folder(tmp_path: Path) -> None:
    (tmp_path / "photos/a").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    for folder in ("photos/a", "secret"):
        Image.new("L", (4, 4)).save(tmp_path / folder / "0.png")
    (tmp_path / "photos/a/1.png").symlink_to(tmp_path / "secret/0.png")
    with pytest.raises(ValueError, match=r"1\.png leads out of the folder"):
        load_dataset(tmp_path / "photos")
    (tmp_path / "photos/a/1.png").unlink()
    (tmp_path / "photos/b").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="leads out of the folder"):
        load_dataset(tmp_path / "photos")


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real/a").mkdir(parents=True)
    for i in range(4):
        Image.new("L", (4, 4)).save(tmp_path / f"real/a/{i}.png")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert len(load_dataset(tmp_path / "link", test_fraction=0.5).y_train) == 2


def test_a_list_of_images_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    (folder / "train/n1/images").mkdir(parents=True)
    (folder / "val/images").mkdir(parents=True)
    Image.fromarray(random_images(1, 64, 3)[0]).save(folder / "train/n1/images/n1_0.JPEG")
    Image.new("RGB", (64, 64)).save(tmp_path / "secret.png")
    (folder / "wnids.txt").write_text("n1\n")
    (folder / "val/val_annotations.txt").write_text("../../../secret.png\tn1\n")
    with pytest.raises(ValueError, match="leads out of the folder"):
        read_tiny_imagenet(folder)


def test_links_in_a_tar_archive_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("wanted")
        info.type, info.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        archive.addfile(info)
    with pytest.raises(ValueError, match=r"a\.tar lacks wanted"):
        read_members(tmp_path / "a.tar", ["wanted"])


def test_a_pipe_in_an_image_folder_is_passed_over(tmp_path: Path) -> None:
    import os

    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a/0.png")
    with pytest.raises(ValueError, match="holds no image"):
        load_dataset(tmp_path)


def test_postscript_is_never_run(tmp_path: Path) -> None:
    assert "EPS" not in images.image_formats()
    assert ".eps" not in images.image_suffixes()
    (tmp_path / "a").mkdir()
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "EPS")
    (tmp_path / "a/0.png").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match=r"0\.png is not an image that can be read"):
        load_dataset(tmp_path)
