"""What a call asks for: a configuration, which is text, and the objects beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedwcm.api.types import ConfigLike
from fedwcm.config.flags import FLAGS, settings_from
from fedwcm.config.objects import Objects, separate
from fedwcm.config.resolve import OBJECT
from fedwcm.config.schema import COMPONENTS, Config, Settings, from_settings, overlay, to_settings
from fedwcm.runs.folder import RunFolder


@dataclass(frozen=True, eq=False)
class Request:
    """Options as text and the objects that cannot be text.

    `trusted` is false where a name that stands for code comes from a run's folder alone.
    """

    settings: Settings
    objects: Objects
    trusted: bool = True

    @property
    def config(self) -> Config:
        return from_settings(self.settings)


def flags_in(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a function's arguments that are common options."""
    return {name: value for name, value in arguments.items() if name in FLAGS}


def request(
    method: Any, config: ConfigLike | None, settings: Mapping[str, object] | None, flags: Mapping[str, Any]
) -> Request:
    """What is asked for by names and objects, a file and dotted settings."""
    text, objects = separate({**flags, "method": method})
    return Request(settings_from(text.pop("method"), config, settings, text), objects)


def resumed(asked: Request, folder: RunFolder, trust: bool) -> Request:
    """The request on top of what the folder's run was: what is not said again stays as it was."""
    held = {key: value for key, value in to_settings(folder.config()).items() if key != "run.device"}
    names = [f"{section}.name" for section in COMPONENTS]
    code = [str(held.get(name)) for name in names if name not in asked.settings]
    trusted = trust or not any(":" in name and not name.startswith(OBJECT) for name in code)
    return Request(overlay(held, asked.settings), asked.objects, trusted)
