"""Read named files out of a folder or a tar archive, without unpacking anything to disk."""

import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from fedwcm.data.formats.safety import open_maybe_gzip


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the content of each named file of a folder, or of a tar archive whatever its inner folder.

    An archive may be gzipped. Links in it are ignored, and it is read once from end to end.
    """
    if path.is_dir():
        return {name: (path / name).read_bytes() for name in names}
    found: dict[str, bytes] = {}
    with open_maybe_gzip(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            name = PurePosixPath(member.name).name
            if name in names and member.isreg() and (content := archive.extractfile(member)) is not None:
                found[name] = content.read()
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    return found
