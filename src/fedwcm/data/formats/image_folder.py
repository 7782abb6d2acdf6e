"""A folder of images with one folder per class."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedwcm.data.dataset import quote_names
from fedwcm.data.formats.encode import category_values
from fedwcm.data.formats.images import image_suffixes, open_image, stack_images
from fedwcm.data.formats.safety import require_inside
from fedwcm.data.formats.table_file import open_table, table_suffix
from fedwcm.data.raw import RawSplits, Samples, name_parts
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.schema import Encoding

CLIENT_FOLDERS = "folder"
"""What `--client` says where clients are folders above those of the classes."""


@dataclass(frozen=True)
class ImageFile:
    """An image, and the names of its class and of the folder above, which may be a client's."""

    path: Path
    label: str
    client: str = ""


def read_image_folder(folder: Path, options: ReadOptions) -> RawSplits:
    """Read `train/CLASS/*`, `val/CLASS/*` and `test/CLASS/*`, or `CLASS/*` from which a test part is drawn.

    With `client="folder"` there is a level more, `CLIENT/CLASS/*`; or `client` names a table with columns `file`
    and `client`. Files that are not images, by their extension, are ignored. Without labels, every image
    below the folder is taken.
    """
    encoding = Encoding(image_size=options.size)
    if not options.labelled:
        samples = _read_samples(folder, _list_every_image(folder), options)
        return RawSplits({"train": samples}, encoding=encoding)
    roots = _find_roots(folder)
    nested = options.client == CLIENT_FOLDERS
    listed_files = {part: _list_images(folder, root, nested) for part, root in roots.items()}
    files = [file for part in listed_files.values() for file in part]
    holders = {"client": np.array([file.client for file in files])} if nested else {}
    for role, table in (("client", None if nested else options.client), ("group", options.group)):
        if table is not None:
            holders[role] = np.array(_read_holders(folder, files, role, table))
    whole = replace(_read_samples(folder, files, options), **holders)  # so that the parts agree in channels
    parts, start = {}, 0
    for part, images in listed_files.items():
        parts[part] = whole.take(slice(start, start + len(images)))
        start += len(images)
    return RawSplits(parts, encoding=encoding)


def _find_roots(folder: Path) -> dict[str, Path]:
    """Return the folder of each part; the folder itself where it has no parts."""
    names = [path.name for path in _list_folders(folder, folder)]
    parts = name_parts(str(folder), names)
    others = [name for name in names if name not in parts.values()]
    if not parts:
        return {"train": folder}
    if "train" not in parts and others:
        raise ValueError(
            f"{folder} has a folder {next(iter(parts.values()))!r} but none called 'train', beside "
            f"{quote_names(others)}: name the folder of the training part 'train', or give the classes other names"
        )
    if others:
        text = f"{folder}: {quote_names(others)} are ignored: beside 'train' only 'val' and 'test' are read"
        warnings.warn(text, stacklevel=5)
    return {part: folder / name for part, name in parts.items()}


def _list_images(top: Path, root: Path, nested: bool) -> list[ImageFile]:
    files: list[ImageFile] = []
    for holder in _list_folders(top, root) if nested else [root]:
        for folder in _list_folders(top, holder):
            images = sorted(file for file in folder.iterdir() if _is_image(file))
            if not images:
                raise ValueError(_explain_no_image(top, folder, nested))
            files.extend(ImageFile(require_inside(top, file), folder.name, holder.name) for file in images)
    if not files:
        levels = "one folder per client, in it one per class" if nested else "one folder per class"
        raise ValueError(f"{root} holds no folders of images ({levels})")
    return files


def _explain_no_image(top: Path, folder: Path, nested: bool) -> str:
    deeper = [path.name for path in _list_folders(top, folder)]
    hint = (
        f"; it holds the folders {quote_names(deeper)}: if {folder.name!r} is a client and these are classes, "
        f"pass --client {CLIENT_FOLDERS} (client={CLIENT_FOLDERS!r})"
        if deeper and not nested
        else ""
    )
    return f"{folder} holds no image{hint}; image files end in {', '.join(image_suffixes())}"


def _list_folders(top: Path, folder: Path) -> list[Path]:
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [require_inside(top, path) for path in folders]


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in image_suffixes() and not file.name.startswith(".") and file.is_file()


def _list_every_image(folder: Path) -> list[ImageFile]:
    images = sorted(file for file in folder.rglob("*") if _is_image(file))
    if not images:
        raise ValueError(f"{folder} holds no image; image files end in {', '.join(image_suffixes())}")
    return [ImageFile(require_inside(folder, file), "") for file in images]


def _read_holders(folder: Path, files: Sequence[ImageFile], role: str, source: str) -> list[str]:
    """Return the client or group of each file, by a table with the columns `file` (its path) and `role`."""
    path = next((p for p in (folder / source, Path(source).expanduser()) if p.is_file()), None)
    if path is None or table_suffix(path) is None:
        raise ValueError(
            f"--{role} {source} ({role}={source!r}) is neither {CLIENT_FOLDERS!r} (for CLIENT/CLASS/*) nor a "
            f"table of files and clients for {folder}: a .csv with the columns file and client"
            if role == "client"
            else f"--group {source} (group={source!r}) is no table for {folder}, with the columns file and group"
        )
    table = open_table(path, ReadOptions())
    if not {"file", role} <= set(table.column_names):
        raise ValueError(
            f"{path} must have the columns 'file' and {role!r}; it has {quote_names(table.column_names)}"
        )
    names, values = (map(str, category_values(str(path), table, name)) for name in ("file", role))
    holders: dict[str, str] = {}
    for name, value in zip(names, values, strict=True):
        if name in holders:
            raise ValueError(f"{path} names the file {name!r:.200} twice: each image has one {role}")
        holders[name] = value
    paths = [file.path.relative_to(folder).as_posix() for file in files]
    if unknown := [name for name in paths if name not in holders]:
        raise ValueError(f"{path} names no {role} for {len(unknown)} images, the first {unknown[0]!r}")
    if strange := [name for name in holders if name not in set(paths)]:
        raise ValueError(
            f"{path} names {len(strange)} files that are not in {folder}, the first {strange[0]!r:.200}"
        )
    return [holders[name] for name in paths]


def _read_samples(folder: Path, files: Sequence[ImageFile], options: ReadOptions) -> Samples:
    stored = sum(file.path.stat().st_size for file in files)
    opened = ((str(file.path), open_image(str(file.path), file.path.read_bytes())) for file in files)
    images = stack_images(opened, len(files), size=options.size, stored=stored)
    labels = np.array([file.label for file in files]) if options.labelled else None
    return Samples(images, labels, ids=np.array([file.path.relative_to(folder).as_posix() for file in files]))
