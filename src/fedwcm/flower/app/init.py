"""Write the app that users start from (its files are in `template/`), and check its options."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from importlib.resources import as_file, files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import tomli_w
from click import ClickException
from flwr.common.config import flatten_dict, parse_config_args

from fedwcm.config.flags import about
from fedwcm.config.options import plain
from fedwcm.config.schema import SECTIONS, Config
from fedwcm.core.checks import unknown
from fedwcm.experiment.components import Components, reject_unused_options
from fedwcm.flower.app.options import ELSEWHERE, FLOWER_DEFAULTS, SIMULATOR_ONLY, FlowerOptions, read

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
    """Return the folder's name as a package name that no installed package has."""
    words = re.sub(r"\W+|^(?=\d)", "_", folder.resolve().name.lower()).strip("_") or "app"
    words = f"app_{words}" if words[0].isdigit() else words
    spec = None if iskeyword(words) else find_spec(words)
    taken = iskeyword(words) or (spec is not None and spec.origin is not None)
    return f"{words}_app" if taken else words


def option_tables() -> str:
    """Return all options as tables of a `pyproject.toml`, with their meaning."""
    tables = ""
    for section, cls in {**SECTIONS, "flower": FlowerOptions}.items():
        if section in ELSEWHERE:
            continue
        values = {field.name: "none" for field in fields(cls)} | plain(cls())
        tables += f"\n[tool.flwr.app.config.{section}]\n"
        for name, value in values.items():
            key = f"{section}.{name}"
            if key not in NOT_LISTED:
                default = OWN_VALUES.get(key, ",".join(map(str, value)) if isinstance(value, list) else value)
                tables += f"{tomli_w.dumps({name: default}).strip()} # {about(cls, name).rstrip('.')}\n"
    return tables


PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""What Flower takes for an option in `--run-config`; it ignores everything else."""


def flower_check(folder: str | Path, run_config: Sequence[str] = ()) -> Config:
    """Return the configuration with which `flwr run` would run; an error names what is wrong.

    Args:
        folder: of the app.
        run_config: changes of its options, as `flwr run` takes them: `"method.name='fedcm' run.rounds=5"`.
    """
    listed = listed_options(Path(folder))
    overrides = _overrides(list(run_config))
    for key in overrides:
        if key not in listed:
            raise unknown("option", key, sorted(listed))
    options = read({**listed, **overrides})
    reject_unused_options(options.config, Components.of(options.config))
    return options.config


def _overrides(lines: list[str]) -> dict[str, Any]:
    """Return the options in `--run-config`, by dotted names."""
    for line in lines:
        ignored = [] if line.endswith(".toml") else PAIR.sub(" ", line).split()
        if ignored:
            raise ValueError(f"--run-config {ignored[0]!r} is not allowed: it must be KEY=VALUE")
    try:
        return dict(parse_config_args(lines))
    except ClickException as error:
        raise ValueError(f"--run-config {' '.join(lines)!r} cannot be read: {error.message}") from None


def listed_options(folder: Path) -> dict[str, Any]:
    """Return the run-config in an app's `pyproject.toml`, by dotted names."""
    path = folder / "pyproject.toml"
    if not path.is_file():
        raise ValueError(f"{path} does not exist: the folder must be that of a Flower app")
    app = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("flwr", {}).get("app", {})
    return flatten_dict(app.get("config"))
