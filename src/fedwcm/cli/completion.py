"""Shell completion of names: `eval "$(register-python-argcomplete fedwcm)"`."""

from collections.abc import Callable
from typing import Any

from fedwcm.cli.listing import list_names
from fedwcm.config.option_docs import all_options
from fedwcm.config.schema import COMPONENTS

Completer = Callable[..., list[str]]

KINDS = {
    "method": ("methods", "recipes"),
    "dataset": ("datasets",),
    "partition": ("partitions",),
    "model": ("models",),
    "loss": ("losses",),
    "sampler": ("samplers",),
    "track": ("trackers",),
}
"""Flags whose values are names of these lists."""


def add_completers(parser: Any) -> None:
    """Attach completers to the flags that take names or dotted options."""
    for action in parser._actions:
        for flag in action.option_strings:
            name = flag.lstrip("-")
            if name in KINDS:
                action.completer = _names(*KINDS[name])
            elif name == "methods":
                action.completer = _listed
            elif name in ("set", "grid", "search"):
                action.completer = _options


def _names(*kinds: str) -> Completer:
    def complete(prefix: str, **_: object) -> list[str]:
        return [name for kind in kinds for name in list_names(kind) if name.startswith(prefix)]

    return complete


def _listed(prefix: str, **_: object) -> list[str]:
    """Names after the last comma of a list."""
    before, comma, last = prefix.rpartition(",")
    known = [*list_names("methods"), *list_names("recipes")]
    return [f"{before}{comma}{name}" for name in known if name.startswith(last)]


def _options(prefix: str, **_: object) -> list[str]:
    """Dotted options; those of methods, models, … take longer, and only once their section is typed."""
    is_component = prefix.partition(".")[0] in COMPONENTS
    known = list_names("options") if is_component else [option.key for option in all_options()]
    return [f"{key}=" for key in known if key.startswith(prefix)]
