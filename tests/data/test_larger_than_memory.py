"""Samples unpacked from a file are in memory if they are few, else in a temporary file. Nothing else differs."""

import errno
import io
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from fedwcm.data import Dataset, large_arrays, load_dataset
from fedwcm.data.fingerprint import fingerprint
from fedwcm.data.formats import encode
from fedwcm.utils import temporary_pages as pages_module

from .test_large_data import is_mapped, save_folder

rng = np.random.default_rng(0)
ROWS = 90


def picture(i: int) -> bytes:
    """A grey image and then coloured ones: the array begins with one channel and gets three."""
    pixels = rng.integers(256, size=(6, 5) if i == 0 else (6, 5, 3)).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def columns(**features: Any) -> pa.Table:
    return pa.table({**features, "label": [f"class {i % 3}" for i in range(ROWS)]})


def write_parquet(path: Path, table: pa.Table) -> tuple[str, dict[str, Any]]:
    parquet.write_table(table, path, row_group_size=20)
    return str(path), {"label": "label"}


def parquet_vectors(folder: Path) -> tuple[str, dict[str, Any]]:
    vectors = rng.normal(size=(ROWS, 7)).astype(np.float32)
    return write_parquet(folder / "vectors.parquet", columns(x=list(vectors)))


def parquet_fixed(folder: Path) -> tuple[str, dict[str, Any]]:
    flat = pa.array(rng.integers(9, size=ROWS * 4), pa.int16())
    table = columns(x=pa.FixedSizeListArray.from_arrays(flat, 4), age=rng.integers(99, size=ROWS))
    return write_parquet(folder / "fixed.parquet", table)


def parquet_images(folder: Path) -> tuple[str, dict[str, Any]]:
    return write_parquet(folder / "images.parquet", columns(image=[picture(i) for i in range(ROWS)]))


def parquet_parts(folder: Path) -> tuple[str, dict[str, Any]]:
    parts = ["test" if i % 5 == 0 else "train" for i in range(ROWS)]
    path, options = write_parquet(
        folder / "parts.parquet", columns(x=list(rng.normal(size=(ROWS, 3))), part=parts)
    )
    return path, {**options, "split": "part"}


def image_folder(folder: Path) -> tuple[str, dict[str, Any]]:
    for i in range(ROWS):
        place = folder / "images" / f"class {i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:03}.png").write_bytes(picture(i))
    return str(folder / "images"), {}


def npy_folder(folder: Path) -> tuple[str, dict[str, Any]]:
    x = rng.normal(size=(ROWS, 4)).astype(np.float32)
    return str(save_folder(folder / "set", {"x": x, "y": np.arange(ROWS) % 3})), {}


def hub_images(folder: Path) -> tuple[str, dict[str, Any]]:
    datasets = pytest.importorskip("datasets", reason="needs fedwcm[hub]")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    rows = {
        "image": [{"bytes": picture(i), "path": None} for i in range(ROWS)],
        "label": [i % 3 for i in range(ROWS)],
    }
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder / "hub")
    return f"hub:{folder / 'hub'}", {}


SOURCES = [parquet_vectors, parquet_fixed, parquet_images, parquet_parts, image_folder, npy_folder, hub_images]


@pytest.mark.parametrize("make", SOURCES)
def test_samples_on_disk_are_those_in_memory(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, options = make(tmp_path)
    expected: Dataset = load_dataset(source, **options)
    monkeypatch.setattr(large_arrays, "IN_MEMORY", 0)
    monkeypatch.setattr(large_arrays, "MOVED_BYTES", 100)
    monkeypatch.setattr(encode, "PIECE_ROWS", 7)
    found: Dataset = load_dataset(source, **options)
    assert is_mapped(found.x_train)
    assert is_mapped(found.x_test)
    for part in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(found, part), getattr(expected, part), strict=True)
    assert fingerprint(found) == fingerprint(expected)


@pytest.mark.parametrize("row", [4, 33])
def test_an_error_names_the_row_of_the_file(row: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = rng.normal(size=(ROWS, 3))
    vectors[row, 1] = np.inf
    source, options = write_parquet(tmp_path / "bad.parquet", columns(x=list(vectors)))
    monkeypatch.setattr(large_arrays, "IN_MEMORY", 0)
    monkeypatch.setattr(encode, "PIECE_ROWS", 7)
    with pytest.raises(ValueError, match=rf"bad\.parquet: column 'x', row {row + 1}: a value is missing or not"):
        load_dataset(source, **options)


def test_a_disk_without_room_is_an_error_that_says_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = image_folder(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(large_arrays, "IN_MEMORY", 0)
    monkeypatch.setattr(pages_module.os, "posix_fallocate", full, raising=False)  # type: ignore[attr-defined]
    message = r"no room for unpacked samples \(No space left on device\): [\d,]+ bytes are needed; .* TMPDIR"
    with pytest.raises(OSError, match=message):
        load_dataset(source)


LIMITED = """
import resource, sys
import numpy as np, fedwcm

def run(source, clients, **options):
    fedwcm.run("fedavg", dataset=source, clients=clients, model="mlp", participation=0.1, rounds=2, epochs=1,
               imbalance="none", backend="sequential", settings={"model.hidden": [4]}, **options)

run((np.zeros((300, 2500), np.float32), np.arange(300) % 10), 3)
with open("/proc/self/status") as status:
    used = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + int(sys.argv[2]),) * 2)
run(sys.argv[1], 100, label="label")
"""
"""Memory of the process's own is limited; mapped files, which the system can write back, are not."""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_parquet_file_larger_than_the_memory_trains_from_disk(tmp_path: Path) -> None:
    rows, width, room = 120_000, 2500, 700 * 2**20
    schema = pa.schema({"x": pa.list_(pa.float32(), width), "label": pa.int64()})
    with parquet.ParquetWriter(tmp_path / "set.parquet", schema, compression="none") as file:
        for start in range(0, rows, 2000):
            flat = pa.array(rng.random(2000 * width, dtype=np.float32))
            batch = [pa.FixedSizeListArray.from_arrays(flat, width), pa.array(np.arange(start, start + 2000) % 10)]
            file.write_batch(pa.record_batch(batch, schema=schema))
    assert rows * width * 4 > large_arrays.IN_MEMORY > room
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "set.parquet"), str(room)]
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}  # others reserve what they do not use
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert resource.getrlimit(resource.RLIMIT_DATA) == (resource.RLIM_INFINITY,) * 2
