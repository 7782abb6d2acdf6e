"""What a call asks for: a configuration, which is text, and the objects beside it."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwcm.config.arguments import ConfigLike
from fedwcm.config.flags import FLAGS, settings_from
from fedwcm.config.objects import Objects, separate
from fedwcm.config.resolve import OBJECT
from fedwcm.config.schema import COMPONENTS, Config
from fedwcm.config.settings import Settings, from_settings, overlay, to_settings
from fedwcm.runs.folder import RunFolder

CONNECTING = ("run.ray_address",)
"""Options by which a machine connects to another, which could run code on it."""


@dataclass(frozen=True, eq=False)
class Request:
    """Options as text and the objects that cannot be text.

    `trusted` is false if the name of code to import comes from a run's folder only.
    """

    settings: Settings
    objects: Objects
    trusted: bool = True

    @property
    def config(self) -> Config:
        return from_settings(self.settings)

    @property
    def names_a_run(self) -> bool:
        """Whether the user said what to train, or on what: otherwise all of it would be defaults."""
        said = self.settings.keys() & {"method.name", "data.dataset"}
        return bool(said) or self.objects.method is not None or self.objects.dataset is not None


def flags_in(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a function's arguments that are common options."""
    return {name: value for name, value in arguments.items() if name in FLAGS}


def request(
    method: Any,
    config: ConfigLike | None,
    settings: Mapping[str, object] | None,
    flags: Mapping[str, Any],
    *,
    trust: bool = False,
) -> Request:
    """What is asked for by names and objects, a file and dotted settings.

    A configuration file is trusted, unless a run wrote it into its folder, which may come from someone else.
    """
    text, objects = separate({**flags, "method": method})
    named = text.pop("method")
    merged = settings_from(named, config, settings, text)
    if isinstance(config, (str, Path)) and _left_by_a_run(Path(config)):
        own = settings_from(named, None, settings, text)
        kept = merged if trust else _without_connections(merged, own, Path(config).parent)
        return Request(kept, objects, trusted=trust or not _names_code(merged, own))
    return Request(merged, objects)


def _left_by_a_run(path: Path) -> bool:
    folder = RunFolder(path.parent)
    left = (folder.metrics_file, folder.summary_file, folder.split_file, folder.model_file, folder.checkpoints)
    return path.name == folder.config_file.name and any(file.exists() for file in left)


def _names_code(settings: Settings, own: Settings) -> bool:
    """Whether a component is code (`package.module:Name`) that the user's own settings do not name."""
    foreign = [key for section in COMPONENTS if (key := f"{section}.name") not in own]
    names = [str(settings.get(key, "")) for key in foreign]
    return any(":" in name and not name.startswith(OBJECT) for name in names)


def _without_connections(settings: Settings, own: Settings, folder: Path) -> Settings:
    """The settings without addresses that the user's own do not name."""
    foreign = [key for key in CONNECTING if settings.get(key) is not None and key not in own]
    for key in foreign:
        text = f"{key} = {settings[key]!r:.100} of {folder} is not used: name it again, or trust the folder"
        warnings.warn(f"{text} (trust=True, --trust)", stacklevel=4)
    return {key: value for key, value in settings.items() if key not in foreign}


def resumed(asked: Request, folder: RunFolder, trust: bool) -> Request:
    """The request on top of the options of the folder's run: what is not given again keeps its value."""
    held = {key: value for key, value in to_settings(folder.config()).items() if key != "run.device"}
    if not trust:
        held = _without_connections(held, asked.settings, folder.path)
    trusted = trust or (asked.trusted and not _names_code(held, asked.settings))
    return Request(overlay(held, asked.settings), asked.objects, trusted)
