"""The named datasets: what they are, which files hold them, where those are published."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedwcm.data import class_names
from fedwcm.data.features import as_features
from fedwcm.data.formats import idx, svhn, tiny_imagenet
from fedwcm.data.formats.cifar_binary import read_cifar_binary
from fedwcm.data.formats.cifar_python import read_cifar_python
from fedwcm.data.formats.digits import read_digits
from fedwcm.data.formats.npz import read_npz
from fedwcm.data.formats.safety import reading
from fedwcm.data.locate import ENVIRONMENT, RemoteFile, fetch
from fedwcm.data.samples import Parts


@dataclass(frozen=True)
class FolderLayout:
    """One form in which a dataset may lie in a data folder: a path, what it must hold, how to read it."""

    path: str
    read: Callable[[Path], Parts]
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
    embedded: Callable[[], Parts] | None = None


def read_named(name: str, entry: NamedDataset, folders: Sequence[Path], download_to: Path | None) -> Parts:
    """Read a dataset from the first folder that holds it, else download it to `download_to` (None: never)."""
    if entry.embedded is not None:
        return _checked(name, entry, entry.embedded())
    layouts = (FolderLayout(f"{name}.npz", read_npz), *entry.layouts)
    layout, path = _find(layouts, folders) or _download(name, entry, layouts, folders, download_to)
    with reading(path):
        parts = layout.read(path)
    return _checked(f"{name} ({path})", entry, parts)


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
            if found := _find(layouts, [target]):
                return found
            problem = "the downloaded files are not as expected"
    searched = ", ".join(str(folder) for folder in folders)
    forms = ", ".join(layout.path for layout in layouts)
    files = "\n".join(f"  {(target or folders[0]) / file.path}  from {file.url}" for file in entry.downloads)
    raise FileNotFoundError(
        f"{name} was not found and not downloaded: {problem}.\n"
        f"Looked in {searched} for {forms}.\n"
        f"To provide it by hand, put in place\n{files}\n"
        f"or name the folder that holds it with --data-dir (data_dir=) or {ENVIRONMENT}."
    ) from (problem if isinstance(problem, OSError) else None)


def _checked(where: str, entry: NamedDataset, parts: Parts) -> Parts:
    """Name the classes, and refuse a file that holds something else than its name says."""
    classes = parts.classes or entry.classes or tuple(str(i) for i in range(entry.num_classes))
    channels, height, width = entry.input_shape
    shape = as_features(where, parts.train.x).shape[1:]
    if len(classes) != entry.num_classes or shape != (height, width, channels):
        raise ValueError(
            f"{where} holds {len(classes)} classes of shape {shape}, "
            f"not {entry.num_classes} of shape {(height, width, channels)} (height, width, channels)"
        )
    return replace(parts, classes=classes)


_FASHION_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz"
_SVHN_URL = "http://ufldl.stanford.edu/housenumbers"

_FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_SVHN_MD5 = {
    svhn.TRAIN_FILE: "e26dedcc434d2e4c54c9b2d4a06d8373",
    svhn.TEST_FILE: "eb5a983be6a315427106f1b164d9cef3",
}

_CIFAR10_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_CIFAR10_FILES = (*(f"{name}.bin" for name in _CIFAR10_BATCHES), "test_batch.bin")
_CIFAR100_FILES = ("train.bin", "test.bin")
_read_cifar10_binary = partial(
    read_cifar_binary, train=_CIFAR10_FILES[:-1], test=_CIFAR10_FILES[-1], label_bytes=1
)
_read_cifar100_binary = partial(read_cifar_binary, train=("train.bin",), test="test.bin", label_bytes=2)
_read_cifar10_python = partial(
    read_cifar_python,
    train=_CIFAR10_BATCHES,
    test="test_batch",
    label_key="labels",
    checksum="c58f30108f718f92721af3b95e74349a",
)
_read_cifar100_python = partial(
    read_cifar_python,
    train=("train",),
    test="test",
    label_key="fine_labels",
    checksum="eb9058c3a382ffc7106e4002c42a8d85",
)

DATASETS: dict[str, NamedDataset] = {
    "digits": NamedDataset(
        "handwritten digits, 8x8 grey, 1797 images; comes with the package",
        10,
        (1, 8, 8),
        class_names.DIGITS,
        embedded=read_digits,
    ),
    "fashion-mnist": NamedDataset(
        "articles of clothing, 28x28 grey, 60000 + 10000 images",
        10,
        (1, 28, 28),
        class_names.FASHION_MNIST,
        (FolderLayout("fashion-mnist", idx.read_idx_folder, idx.TRAIN_FILES + idx.TEST_FILES),),
        tuple(
            RemoteFile(f"{_FASHION_URL}/{name}", f"md5:{md5}", f"fashion-mnist/{name}")
            for name, md5 in _FASHION_MD5.items()
        ),
    ),
    "cifar10": NamedDataset(
        "photos of objects and animals, 32x32 colour, 50000 + 10000 images",
        10,
        (3, 32, 32),
        class_names.CIFAR10,
        (
            FolderLayout("cifar-10-batches-bin", _read_cifar10_binary, _CIFAR10_FILES),
            FolderLayout("cifar-10-binary.tar.gz", _read_cifar10_binary),
            FolderLayout("cifar-10-python.tar.gz", _read_cifar10_python),
        ),
        (
            RemoteFile(
                f"{_CIFAR_URL}/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                "cifar-10-binary.tar.gz",
            ),
        ),
    ),
    "cifar100": NamedDataset(
        "photos of objects and animals, 32x32 colour, 50000 + 10000 images, 100 fine classes",
        100,
        (3, 32, 32),
        class_names.CIFAR100,
        (
            FolderLayout("cifar-100-binary", _read_cifar100_binary, _CIFAR100_FILES),
            FolderLayout("cifar-100-binary.tar.gz", _read_cifar100_binary),
            FolderLayout("cifar-100-python.tar.gz", _read_cifar100_python),
        ),
        (
            RemoteFile(
                f"{_CIFAR_URL}/cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                "cifar-100-binary.tar.gz",
            ),
        ),
    ),
    "svhn": NamedDataset(
        "house numbers from street photos, cropped digits, 32x32 colour, 73257 + 26032 images",
        10,
        (3, 32, 32),
        class_names.DIGITS,
        (FolderLayout("svhn", svhn.read_svhn, (svhn.TRAIN_FILE, svhn.TEST_FILE)),),
        tuple(RemoteFile(f"{_SVHN_URL}/{name}", f"md5:{md5}", f"svhn/{name}") for name, md5 in _SVHN_MD5.items()),
    ),
    "tiny-imagenet": NamedDataset(
        "photos of 200 kinds of things, 64x64 colour, 100000 + 10000 images",
        200,
        (3, 64, 64),
        layouts=(
            FolderLayout(
                "tiny-imagenet-200",
                tiny_imagenet.read_tiny_imagenet,
                ("train", tiny_imagenet.CLASS_LIST, tiny_imagenet.ANNOTATIONS),
            ),
            FolderLayout("tiny-imagenet-200.zip", tiny_imagenet.read_tiny_imagenet),
        ),
        downloads=(
            RemoteFile(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                "tiny-imagenet-200.zip",
            ),
        ),
    ),
}
