"""Check an app's options before it is run: Flower refuses unlisted keys without naming them."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from click import ClickException
from flwr.common.config import parse_config_args

from fedwcm.config.schema import Config
from fedwcm.core.checks import unknown
from fedwcm.experiment.components import Components, reject_unused_options
from fedwcm.flower.app.options import read

PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""What Flower takes for an option in `--run-config`; it ignores everything else."""


def flower_check(folder: str | Path, run_config: Sequence[str] = ()) -> Config:
    """Return the configuration with which `flwr run` would run; an error names what is wrong.

    Args:
        folder: of the app.
        run_config: changes of its options, as `flwr run` takes them: `"method.name='fedcm' run.rounds=5"`.
    """
    listed = listed_options(Path(folder))
    given = _overrides(list(run_config))
    for key in given:
        if key not in listed:
            raise unknown("option", key, sorted(listed))
    options = read({**listed, **given})
    reject_unused_options(options.config, Components.of(options.config))
    return options.config


def _overrides(lines: list[str]) -> dict[str, Any]:
    """The options in `--run-config`, by dotted names."""
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
    return _flat(app.get("config", {}))


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
