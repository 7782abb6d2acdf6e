"""Write the app that people start from. Its files are in `template/`, as they are written."""

from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree, ignore_patterns


def write_app(folder: Path) -> None:
    """Copy the app to a folder, which must be empty or new."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty: choose a new folder for the app")
    with as_file(files("fedwcm.flower") / "template") as template:
        copytree(template, folder, dirs_exist_ok=True, ignore=ignore_patterns("__pycache__"))
