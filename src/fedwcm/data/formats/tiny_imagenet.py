"""The folder layout of Tiny ImageNet, unpacked or inside its zip archive."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from zipfile import ZipFile

import numpy as np

from fedwcm.data.formats.images import open_image, stack_images
from fedwcm.data.formats.safety import require_bounded, require_inside
from fedwcm.data.samples import Parts, Samples

if TYPE_CHECKING:
    from PIL.Image import Image

ROOT = "tiny-imagenet-200/"
ANNOTATIONS = "val/val_annotations.txt"
CLASS_LIST = "wnids.txt"

ReadFile = Callable[[str], bytes]


def read_tiny_imagenet(path: Path) -> Parts:
    """Read train, and val as test (the official test part has no labels). Classes are WordNet ids, sorted.

    A few images are grey; they are stacked as colour images like the rest.
    """
    if path.is_dir():
        files = [file.relative_to(path).as_posix() for file in path.glob("train/*/images/*.JPEG")]
        return _read(files, lambda name: require_inside(path, path / name).read_bytes())
    with ZipFile(path) as archive:
        require_bounded(str(path), sum(entry.file_size for entry in archive.infolist()), path.stat().st_size)
        files = [name.removeprefix(ROOT) for name in archive.namelist()]
        return _read(files, lambda name: archive.read(ROOT + name))


def _read(files: Sequence[str], read: ReadFile) -> Parts:
    classes = tuple(sorted(read(CLASS_LIST).decode().split()))
    train = [(name, PurePosixPath(name).parts[1]) for name in sorted(files) if _is_train_image(name)]
    rows = [line.split("\t") for line in read(ANNOTATIONS).decode().splitlines()]
    for i, row in enumerate(rows):
        if len(row) < 2:
            raise ValueError(f"{ANNOTATIONS}, line {i + 1}: it must hold a file and its class, divided by a tab")
    test = [(f"val/images/{row[0]}", row[1]) for row in rows]
    return Parts(_load(train, read), _load(test, read), classes)


def _is_train_image(name: str) -> bool:
    return PurePosixPath(name).match("train/*/images/*.JPEG")


def _load(labelled: Sequence[tuple[str, str]], read: ReadFile) -> Samples:
    images = stack_images(_decode([name for name, _ in labelled], read), len(labelled))
    return Samples(images, np.array([label for _, label in labelled]))


def _decode(names: Sequence[str], read: ReadFile) -> Iterator[tuple[str, "Image"]]:
    for name in names:
        yield name, open_image(name, read(name))
