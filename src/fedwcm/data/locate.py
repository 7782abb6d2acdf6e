"""Where data is looked for on disk, and how it is downloaded."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = "FEDWCM_DATA"
DEBIAN_FOLDER = Path("/usr/share/datasets")  # where Debian's packages dataset-* put their files


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: its address, its checksum (`md5:...`) and its place in the data folder."""

    url: str
    checksum: str
    path: str


def user_cache() -> Path:
    """Return the per-user cache folder, which may not exist yet."""
    from platformdirs import user_cache_path  # here: the benchmark's other environments do not have it

    return user_cache_path("fedwcm")


def data_folders(data_dir: Path | None) -> tuple[Path, ...]:
    """Return the folders to look in, in order: `data_dir`, FEDWCM_DATA, the user's cache, Debian's."""
    environment = os.environ.get(ENVIRONMENT)
    given = [data_dir] if data_dir is not None else []
    named = [Path(environment).expanduser()] if environment else []
    return (*given, *named, user_cache(), DEBIAN_FOLDER)


def fetch(file: RemoteFile, folder: Path) -> Path:
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
    return target
