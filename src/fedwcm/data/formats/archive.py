"""Read named files out of a folder or a tar archive, without unpacking anything to disk."""

import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the content of each named file of a folder, or of a tar archive whatever its inner folder."""
    if path.is_dir():
        return {name: (path / name).read_bytes() for name in names}
    found: dict[str, bytes] = {}
    with tarfile.open(path, "r|*") as archive:  # as a stream: seeking back in a gzip file is slow
        for member in archive:
            name = PurePosixPath(member.name).name
            if name in names and (content := archive.extractfile(member)) is not None:
                found[name] = content.read()
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    return found
