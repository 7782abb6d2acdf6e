"""Where an error comes from: one of the user's own code needs its place, one about an option does not."""

import sysconfig
import traceback
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = ("site-packages", "dist-packages")


def is_from_users_code(error: BaseException) -> bool:
    """Whether a method, loss or other code of the user's own was being executed when the error was raised."""
    return any(_is_users(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_users(file: str) -> bool:
    """Whether this is a file, and none of this package, of Python's library or of an installed package."""
    path = Path(file)
    if not path.is_file():
        return False
    inside = (PACKAGE, Path(sysconfig.get_path("stdlib")).resolve())
    is_ours = any(path.resolve().is_relative_to(folder) for folder in inside)
    return not is_ours and not any(name in path.parts for name in LIBRARIES)
