"""Write the app that users start from. Its files are in `template/`; it is named after its folder."""

import re
from dataclasses import fields
from importlib.resources import as_file, files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from shutil import copytree, ignore_patterns

import tomli_w

from fedwcm.config.flags import about
from fedwcm.config.options import plain
from fedwcm.config.schema import SECTIONS
from fedwcm.flower.app.options import ELSEWHERE, FLOWER_DEFAULTS, SIMULATOR_ONLY, FlowerOptions

TEMPLATE_PACKAGE, TEMPLATE_NAME = "fedwcm_app", "fedwcm-app"

OWN_VALUES = {
    **FLOWER_DEFAULTS,
    "local.epochs": 5,
    "local.batch_size": 10,
    "participation.fraction": 1.0,
    "run.rounds": 10,
    "flower.patience": 60.0,
}
"""Where the app differs from the defaults: it is small, and all of its clients take part."""

NOT_LISTED = {"run.name", *SIMULATOR_ONLY}
"""Options that the app does not list: a run's name is its method's, and the others have one value on Flower."""


def flower_init(folder: str | Path) -> Path:
    """Write a Flower app to start from, and return its folder.

    Args:
        folder: where to write it, empty or new; package and app have its name.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty: choose a new folder for the app")
    package = package_name(folder)
    with as_file(files("fedwcm.flower") / "template") as template:
        copytree(template, folder, dirs_exist_ok=True, ignore=ignore_patterns("__pycache__"))
    (folder / TEMPLATE_PACKAGE).rename(folder / package)
    for path in [folder / "pyproject.toml", folder / "README.md", *(folder / package).glob("*.py")]:
        text = path.read_text(encoding="utf-8").replace(TEMPLATE_PACKAGE, package)
        path.write_text(text.replace(TEMPLATE_NAME, package.replace("_", "-")), encoding="utf-8")
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(option_tables())
    return folder


def package_name(folder: Path) -> str:
    """The folder's name as a package name that no installed package has."""
    words = re.sub(r"\W+|^(?=\d)", "_", folder.resolve().name.lower()).strip("_") or "app"
    words = f"app_{words}" if words[0].isdigit() else words
    spec = None if iskeyword(words) else find_spec(words)
    taken = iskeyword(words) or (spec is not None and spec.origin is not None)
    return f"{words}_app" if taken else words


def option_tables() -> str:
    """All options as tables of a `pyproject.toml`, with their meaning."""
    tables = ""
    for section, cls in {**SECTIONS, "flower": FlowerOptions}.items():
        if section in ELSEWHERE:
            continue
        values = {field.name: "none" for field in fields(cls)} | plain(cls())
        tables += f"\n[tool.flwr.app.config.{section}]\n"
        for name, value in values.items():
            key = f"{section}.{name}"
            if key not in NOT_LISTED:
                given = OWN_VALUES.get(key, ",".join(map(str, value)) if isinstance(value, list) else value)
                tables += f"{tomli_w.dumps({name: given}).strip()} # {about(cls, name).rstrip('.')}\n"
    return tables
