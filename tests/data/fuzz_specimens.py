"""Small valid files of every format that the package reads, each with the call that reads it."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import csv, parquet

from fedwcm.data import DATASETS, load_dataset, load_rows
from fedwcm.data.build import build_dataset
from fedwcm.data.named import read_named
from fedwcm.data.read_options import ReadOptions

SEED = 7
RNG = np.random.default_rng(SEED)

Pack = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Specimen:
    """A file to garble: inside, before it is packed, or as it lies on disk."""

    path: str
    content: bytes
    pack: Pack = bytes


@dataclass(frozen=True)
class Reader:
    """The files of a valid source, and how it is read."""

    specimens: tuple[Specimen, ...]
    read: Callable[[Path], object]
    name: str
    """What every error must name: part of the path, and of the data set's name."""


def _pixels(*shape: int) -> Any:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def _zipped(name: str, others: dict[str, bytes], method: int) -> Pack:
    def pack(content: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for member, data in {name: content, **others}.items():
                archive.writestr(zipfile.ZipInfo(member), data)
        return buffer.getvalue()

    return pack


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _tarred(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


_gzip = partial(gzip.compress, compresslevel=1, mtime=0)


def _image(kind: str, mode: str = "RGB", side: int = 8, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(_pixels(side, side, 3)).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def _named(name: str, classes: int) -> Callable[[Path], object]:
    entry = replace(DATASETS[name], num_classes=classes, classes=None)

    def read(folder: Path) -> object:
        return build_dataset(name, read_named(name, entry, [folder], None), ReadOptions())

    return read


def idx(pack: Pack, suffix: str) -> Reader:
    specimens = []
    for part in ("train", "t10k"):
        for kind, array in (
            ("images-idx3", _pixels(6, 28, 28)),
            ("labels-idx1", np.arange(6, dtype=np.uint8) % 3),
        ):
            content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
            specimens.append(Specimen(f"fashion-mnist/{part}-{kind}-ubyte{suffix}", content, pack))
    return Reader(tuple(specimens), _named("fashion-mnist", 3), "fashion-mnist")


def _records() -> bytes:
    labels = np.arange(3, dtype=np.uint8)[:, None]
    return np.concatenate([labels, _pixels(3, 3072)], axis=1).tobytes()


def cifar_binary() -> Reader:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    members = {f"cifar-10-batches-bin/{name}.bin": _records() for name in names}
    return Reader((Specimen("cifar-10-binary.tar.gz", _tarred(members), _gzip),), _named("cifar10", 3), "cifar")


def cifar_folder() -> Reader:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    specimens = tuple(Specimen(f"cifar-10-batches-bin/{name}.bin", _records()) for name in names)
    return Reader(specimens, _named("cifar10", 3), "cifar")


def npz(method: int) -> Reader:
    x, y = _npy(_pixels(12, 4, 4)), _npy(np.array(["a", "b", "c"] * 4))
    return Reader(
        (
            Specimen("own.npz", x, _zipped("x.npy", {"y.npy": y}, method)),
            Specimen("own.npz", y, _zipped("y.npy", {"x.npy": x}, method)),
            Specimen("own.npz", _npy(RNG.normal(size=(12, 3))), _zipped("x.npy", {"y.npy": y}, method)),
        ),
        lambda folder: load_dataset(folder / "own.npz"),
        "own",
    )


def _rows() -> Any:
    count = 30
    return pa.table(
        {
            "height": RNG.normal(size=count),
            "count": np.arange(count),
            "kind": [("cat", "dog")[i % 2] for i in range(count)],
            "site": [("oslo", "rome", "bern")[i % 3] for i in range(count)],
        }
    )


def _table(name: str, content: bytes, pack: Pack = bytes, **options: Any) -> Reader:
    chosen = {"label": "kind", "client": "site", **options}
    return Reader((Specimen(name, content, pack),), lambda folder: load_dataset(folder / name, **chosen), "own")


def _csv() -> bytes:
    buffer = io.BytesIO()
    csv.write_csv(_rows(), buffer)
    return buffer.getvalue()


def _parquet(table: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, **options)
    return buffer.getvalue()


def _json_lines() -> bytes:
    rows = _rows().append_column("vector", pa.array([[i, i / 2] for i in range(30)])).to_pylist()
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _mixed() -> Any:
    """Categories and gaps."""
    gaps = pa.array([None if i % 7 == 0 else i / 3 for i in range(30)])
    colours = pa.array([None if i % 5 == 0 else ("red", "blue")[i % 2] for i in range(30)])
    return _rows().append_column("gaps", gaps).append_column("colour", colours)


def _with_vectors() -> Any:
    vectors = pa.array([[float(i)] * 4 for i in range(30)], pa.list_(pa.float32()))
    return _rows().append_column("vector", vectors)


def _with_images() -> Any:
    images = [{"bytes": _image("PNG", side=4), "path": f"{i}.png"} for i in range(30)]
    return _rows().select(["kind", "site"]).append_column("image", pa.array(images))


def by_schema() -> Reader:
    """Garbled data for a trained model."""
    content = _csv()

    def read(folder: Path) -> object:
        (folder / "trained.csv").write_bytes(content)
        data = load_dataset(folder / "trained.csv", label="kind", client="site")
        return load_rows(folder / "own.csv", data.schema)

    return Reader((Specimen("own.csv", content),), read, "own")


def clients_of_images() -> Reader:
    files = {f"photos/{'ab'[i % 2]}/{i}.png": _image("PNG", side=4 + i) for i in range(6)}
    lines = "".join(f"{path.removeprefix('photos/')},p{i % 2}\n" for i, path in enumerate(files))
    specimens = [Specimen(path, content) for path, content in files.items()]
    specimens += 3 * [Specimen("photos/who.csv", f"file,client\n{lines}".encode())]
    options: Any = {"client": "who.csv", "image_size": 8, "test_fraction": 0.5}
    return Reader(tuple(specimens), lambda folder: load_dataset(folder / "photos", **options), "photos")


def image_folder(*kinds: tuple[str, str]) -> Reader:
    files = [
        Specimen(f"photos/{'ab'[i % 2]}/{i}.{suffix}", _image(kind))
        for i, (kind, suffix) in enumerate(2 * list(kinds))
    ]
    return Reader(tuple(files), lambda folder: load_dataset(folder / "photos", test_fraction=0.5), "photos")


def tiny_imagenet(packed: bool) -> Reader:
    names = ("n01", "n02", "n03")
    tree = {"wnids.txt": "\n".join(names).encode()}
    tree |= {f"train/{name}/images/{name}_0.JPEG": _image("JPEG", side=64) for name in names}
    tree |= {f"val/images/val_{i}.JPEG": _image("JPEG", side=64) for i in range(3)}
    lines = (f"val_{i}.JPEG\t{name}\t0\t0\t63\t63\n" for i, name in enumerate(names))
    tree["val/val_annotations.txt"] = "".join(lines).encode()
    read = _named("tiny-imagenet", 3)
    if not packed:
        return Reader(
            tuple(Specimen(f"tiny-imagenet-200/{path}", data) for path, data in tree.items()),
            read,
            "tiny-imagenet",
        )
    inner = {f"tiny-imagenet-200/{path}": data for path, data in tree.items()}
    packs = ((path, {k: v for k, v in inner.items() if k != path}) for path in inner)
    return Reader(
        tuple(
            Specimen("tiny-imagenet-200.zip", inner[path], _zipped(path, others, zipfile.ZIP_DEFLATED))
            for path, others in packs
        ),
        read,
        "tiny-imagenet",
    )


READERS: dict[str, Callable[[], Reader]] = {
    "idx": partial(idx, bytes, ""),
    "idx-gz": partial(idx, _gzip, ".gz"),
    "cifar-binary": cifar_binary,
    "cifar-folder": cifar_folder,
    "npz": partial(npz, zipfile.ZIP_STORED),
    "npz-packed": partial(npz, zipfile.ZIP_DEFLATED),
    "csv": lambda: _table("own.csv", _csv()),
    "tsv-gz": lambda: _table("own.tsv.gz", _csv().replace(b",", b"\t"), _gzip),
    "csv-latin-1": lambda: _table("own.csv", _csv().replace(b"dog", b"d\xf6g"), encoding="latin-1"),
    "json-lines": lambda: _table("own.jsonl", _json_lines()),
    "parquet-gaps": lambda: _table("own.parquet", _parquet(_mixed()), impute="median"),
    "parquet-vectors": lambda: _table("own.parquet", _parquet(_with_vectors(), compression="none")),
    "parquet-images": lambda: _table("own.parquet", _parquet(_with_images(), compression="none"), image_size=4),
    "by-schema": by_schema,
    "image-clients": clients_of_images,
    "parquet": lambda: _table("own.parquet", _parquet(_rows())),
    "parquet-plain": lambda: _table("own.parquet", _parquet(_rows(), compression="none", use_dictionary=False)),
    "image-folder": partial(image_folder, ("PNG", "png"), ("JPEG", "jpg"), ("BMP", "bmp")),
    "image-folder-others": partial(
        image_folder, ("PPM", "ppm"), ("GIF", "gif"), ("TIFF", "tif"), ("WEBP", "webp")
    ),
    "tiny-imagenet": partial(tiny_imagenet, False),
    "tiny-imagenet-zip": partial(tiny_imagenet, True),
}
