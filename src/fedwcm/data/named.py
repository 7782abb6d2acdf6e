"""The named datasets: what they are, where they are looked for on disk, how they are downloaded."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedwcm.data.dataset import as_features
from fedwcm.data.formats import published
from fedwcm.data.formats.arrays import read_npz
from fedwcm.data.formats.safety import reading
from fedwcm.data.raw import RawSplits

ENVIRONMENT = "FEDWCM_DATA"
DEBIAN_FOLDER = Path("/usr/share/datasets")  # where Debian's packages dataset-* put their files


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: its address, its checksum (`md5:...`) and its place in the data folder."""

    url: str
    checksum: str
    path: str


@dataclass(frozen=True)
class FolderLayout:
    """One form in which a dataset may lie in a data folder: a path, what it must hold, how to read it."""

    path: str
    read: Callable[[Path], RawSplits]
    needs: tuple[str, ...] = ()

    def find(self, folder: Path) -> Path | None:
        """Return the path if it is there and complete; a needed file may have the suffix `.gz`."""
        path = folder / self.path
        complete = all((path / need).exists() or (path / f"{need}.gz").exists() for need in self.needs)
        return path if path.exists() and complete else None


@dataclass(frozen=True)
class NamedDataset:
    """A dataset known by name. `input_shape` is (channels, height, width).

    One with `embedded` comes with an installed library; the others lie in a data folder.
    """

    description: str
    num_classes: int
    input_shape: tuple[int, int, int]
    classes: tuple[str, ...] | None = None
    layouts: tuple[FolderLayout, ...] = ()
    downloads: tuple[RemoteFile, ...] = ()
    embedded: Callable[[], RawSplits] | None = None
    note: str = ""
    """What is said where it is not found."""


def user_cache() -> Path:
    """Return the per-user cache folder, which may not exist yet."""
    from platformdirs import user_cache_path  # here: the benchmark's other environments do not have it

    return user_cache_path("fedwcm")


def data_folders(data_dir: Path | None) -> tuple[Path, ...]:
    """Return the folders to look in, in order: `data_dir`, FEDWCM_DATA, the user's cache, Debian's."""
    environment = os.environ.get(ENVIRONMENT)
    from_environment = Path(environment).expanduser() if environment else None
    folders = (data_dir, from_environment, user_cache(), DEBIAN_FOLDER)
    return tuple(folder for folder in folders if folder is not None)


def fetch(file: RemoteFile, folder: Path) -> None:
    """Download the file into the data folder, unless it is there already, and check it.

    A file with the wrong checksum is not kept: ValueError. A failed download is an OSError.
    """
    import pooch

    target = folder / file.path
    try:
        pooch.retrieve(
            file.url,
            known_hash=file.checksum,
            fname=target.name,
            path=target.parent,
            progressbar=sys.stderr.isatty(),
        )
    except OSError as error:
        raise OSError(f"download of {file.url} failed: {error}") from error
    except ValueError as error:
        raise ValueError(f"{file.url} is not the published file and was not kept: {error}") from error


def read_named(name: str, entry: NamedDataset, folders: Sequence[Path], download_to: Path | None) -> RawSplits:
    """Read a dataset from the first folder that holds it, else download it to `download_to` (None: never)."""
    if entry.embedded is not None:
        return _check_entry(name, entry, entry.embedded())
    layouts = (FolderLayout(f"{name}.npz", read_npz), *entry.layouts)
    layout, path = _find(layouts, folders) or _download(name, entry, layouts, folders, download_to)
    with reading(path):
        splits = layout.read(path)
    return _check_entry(f"{name} ({path})", entry, splits)


def _find(layouts: Iterable[FolderLayout], folders: Iterable[Path]) -> tuple[FolderLayout, Path] | None:
    candidates = ((layout, layout.find(folder)) for folder in folders for layout in layouts)
    return next(((layout, path) for layout, path in candidates if path is not None), None)


def _download(
    name: str,
    entry: NamedDataset,
    layouts: Sequence[FolderLayout],
    folders: Sequence[Path],
    target: Path | None,
) -> tuple[FolderLayout, Path]:
    problem: str | OSError = "downloading is switched off"
    if target is not None:
        try:
            for file in entry.downloads:
                fetch(file, target)
        except OSError as error:
            problem = error
        else:
            if place := _find(layouts, [target]):
                return place
            problem = "the downloaded files are not as expected"
    searched = ", ".join(str(folder) for folder in folders)
    forms = ", ".join(layout.path for layout in layouts)
    files = "\n".join(f"  {(target or folders[0]) / file.path}  from {file.url}" for file in entry.downloads)
    raise FileNotFoundError(
        f"{name} was not found and not downloaded: {problem}.\n"
        f"Looked in {searched} for {forms}.\n"
        f"To provide it by hand, put in place\n{files}\n"
        f"or name the folder that holds it with --data-dir (data_dir=) or {ENVIRONMENT}.{entry.note}"
    ) from (problem if isinstance(problem, OSError) else None)


def _check_entry(where: str, entry: NamedDataset, splits: RawSplits) -> RawSplits:
    """Name the classes, and refuse a file that holds something else than its name says."""
    classes = splits.classes or entry.classes or tuple(str(i) for i in range(entry.num_classes))
    channels, height, width = entry.input_shape
    shape = as_features(where, splits.train.x).shape[1:]
    if len(classes) != entry.num_classes or shape != (height, width, channels):
        raise ValueError(
            f"{where} holds {len(classes)} classes of shape {shape}, "
            f"not {entry.num_classes} of shape {(height, width, channels)} (height, width, channels)"
        )
    return replace(splits, classes=classes)


def _remote(url: str, checksums: Mapping[str, str], folder: str = "") -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(f"{url}/{name}", f"md5:{md5}", folder + name) for name, md5 in checksums.items())


_FASHION_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz"
_SVHN_URL = "http://ufldl.stanford.edu/housenumbers"
_TINY_URL = "http://cs231n.stanford.edu"

_FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_CIFAR_NOTE = (
    "\nThe Python version (cifar-…-python.tar.gz) is pickles and not read: take the binary version, or pass the "
    "data set of torchvision in Python."
)
_CIFAR10_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_CIFAR100_FILES = ("train.bin", "test.bin")
_read_cifar10 = partial(published.read_cifar, train=_CIFAR10_FILES[:-1], test=_CIFAR10_FILES[-1], label_bytes=1)
_read_cifar100 = partial(published.read_cifar, train=_CIFAR100_FILES[:-1], test=_CIFAR100_FILES[-1], label_bytes=2)

_DIGITS = tuple("0123456789")
_FASHION_WORDS = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_CIFAR10_WORDS = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_WORDS = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
    can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
    dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
    lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
    pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
    seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
    tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
    worm
"""

DATASETS: dict[str, NamedDataset] = {
    "digits": NamedDataset(
        "handwritten digits, 8x8 grey, 1797 images; comes with the package",
        10,
        (1, 8, 8),
        _DIGITS,
        embedded=published.read_digits,
    ),
    "fashion-mnist": NamedDataset(
        "articles of clothing, 28x28 grey, 60000 + 10000 images",
        10,
        (1, 28, 28),
        tuple(_FASHION_WORDS.split(",")),
        (FolderLayout("fashion-mnist", published.read_idx_folder, published.IDX_TRAIN + published.IDX_TEST),),
        _remote(_FASHION_URL, _FASHION_MD5, "fashion-mnist/"),
    ),
    "cifar10": NamedDataset(
        "photos of objects and animals, 32x32 colour, 50000 + 10000 images",
        10,
        (3, 32, 32),
        tuple(_CIFAR10_WORDS.split()),
        (
            FolderLayout("cifar-10-batches-bin", _read_cifar10, _CIFAR10_FILES),
            FolderLayout("cifar-10-binary.tar.gz", _read_cifar10),
        ),
        _remote(_CIFAR_URL, {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}),
        note=_CIFAR_NOTE,
    ),
    "cifar100": NamedDataset(
        "photos of objects and animals, 32x32 colour, 50000 + 10000 images, 100 fine classes",
        100,
        (3, 32, 32),
        tuple(_CIFAR100_WORDS.split()),
        (
            FolderLayout("cifar-100-binary", _read_cifar100, _CIFAR100_FILES),
            FolderLayout("cifar-100-binary.tar.gz", _read_cifar100),
        ),
        _remote(_CIFAR_URL, {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}),
        note=_CIFAR_NOTE,
    ),
    "svhn": NamedDataset(
        "house numbers from street photos, cropped digits, 32x32 colour, 73257 + 26032 images",
        10,
        (3, 32, 32),
        _DIGITS,
        (FolderLayout("svhn", published.read_svhn, tuple(published.SVHN_CHECKSUMS)),),
        _remote(_SVHN_URL, published.SVHN_CHECKSUMS, "svhn/"),
    ),
    "tiny-imagenet": NamedDataset(
        "photos of 200 kinds of things, 64x64 colour, 100000 + 10000 images",
        200,
        (3, 64, 64),
        layouts=(
            FolderLayout(
                "tiny-imagenet-200",
                published.read_tiny_imagenet,
                ("train", published.TINY_CLASSES, published.TINY_ANNOTATIONS),
            ),
            FolderLayout("tiny-imagenet-200.zip", published.read_tiny_imagenet),
        ),
        downloads=_remote(_TINY_URL, {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}),
    ),
}
