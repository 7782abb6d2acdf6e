"""A folder of images with one folder per class."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedwcm.data.formats.images import image_suffixes, open_image, stack_images
from fedwcm.data.formats.safety import require_inside
from fedwcm.data.samples import Parts, Samples

if TYPE_CHECKING:
    from PIL.Image import Image


def read_image_folder(folder: Path) -> Parts:
    """Read `train/CLASS/*` and `test/CLASS/*`, or `CLASS/*` from which a test part is drawn.

    All images must have one size. Files that are not images, by their extension, are passed over, and so
    are other folders beside `train` and `test`.
    """
    has_train, has_test = ((folder / part).is_dir() for part in ("train", "test"))
    if has_train != has_test:
        found, absent = ("train", "test") if has_train else ("test", "train")
        raise ValueError(f"{folder} has a folder {found!r} but none called {absent!r}: give both or neither")
    roots = [folder / "train", folder / "test"] if has_train else [folder]
    listed = [_list_images(root) for root in roots]
    files = [file for part in listed for file in part]
    stored = sum(file.stat().st_size for file in files)
    images = stack_images(_open(files), len(files), stored=stored)  # all at once, so that both parts agree in channels
    labels = np.array([file.parent.name for file in files])
    if not has_train:
        return Parts(Samples(images, labels))
    cut = len(listed[0])
    return Parts(Samples(images[:cut], labels[:cut]), Samples(images[cut:], labels[cut:]))


def _list_images(root: Path) -> list[Path]:
    files: list[Path] = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        found = sorted(file for file in folder.iterdir() if _is_image(file))
        if not found:
            raise ValueError(f"{folder} holds no image; image files end in {', '.join(image_suffixes())}")
        files.extend(require_inside(root, file) for file in found)
    if not files:
        raise ValueError(f"{root} holds no folders of images (one folder per class)")
    return files


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in image_suffixes() and not file.name.startswith(".") and file.is_file()


def _open(files: Sequence[Path]) -> Iterator[tuple[str, "Image"]]:
    for file in files:
        yield str(file), open_image(str(file), file.read_bytes())
