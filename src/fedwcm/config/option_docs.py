"""What the options of a dataclass are: type, default, and the meaning that its docstring gives them."""

import inspect
import re
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any

from fedwcm.config.options import describe
from fedwcm.config.schema import PARTITION_DEFAULTS, SECTIONS, Config
from fedwcm.utils.field_types import field_types

NAMES_OF_COMPONENTS = {
    "partition": "how samples are divided among clients: `fedwcm list partitions`",
    "model": "the network: `fedwcm list models`, or package.module:factory",
    "method": "the method: `fedwcm list methods`, or package.module:Name",
    "loss": "the clients' loss: `fedwcm list losses`, or package.module:Name",
    "sampler": "how clients draw their batches: `fedwcm list samplers`, or package.module:Name",
}


@dataclass(frozen=True)
class OptionDoc:
    """An option, as a user is told of it."""

    key: str
    kind: str
    default: str
    about: str


def option_docs(cls: type[Any], section: str) -> list[OptionDoc]:
    """The options of a dataclass under their dotted names."""
    kinds = field_types(cls)
    return [
        OptionDoc(
            f"{section}.{field.name}", describe(kinds[field.name]), default_text(field), about(cls, field.name)
        )
        for field in fields(cls)
        if field.init
    ]


@cache
def all_options() -> tuple[OptionDoc, ...]:
    """Every dotted option that does not depend on the chosen method, loss, sampler, model or partition."""
    return tuple(
        doc for section in fields(Config) if section.name != "source" for doc in _of_section(section.name)
    )


def _of_section(section: str) -> list[OptionDoc]:
    if section in SECTIONS:
        return option_docs(SECTIONS[section], section)
    name = getattr(Config(), section).name
    return [OptionDoc(f"{section}.name", "text", name, NAMES_OF_COMPONENTS[section])]


def default_of(key: str) -> str:
    """The default of a dotted option as text; empty if it has none."""
    section, _, option = key.partition(".")
    if section == "partition" and option in PARTITION_DEFAULTS:
        return str(PARTITION_DEFAULTS[option])
    return next((doc.default for doc in all_options() if doc.key == key), "")


def kind_of(key: str) -> str:
    """The type of a dotted option in words; of the options of partitions too, which flags have."""
    section, _, option = key.partition(".")
    if section == "partition" and option in PARTITION_OPTIONS:
        return PARTITION_OPTIONS[option][0]
    return next((doc.kind for doc in all_options() if doc.key == key), "")


PARTITION_OPTIONS = {
    "clients": ("a whole number", "number of clients."),
    "beta": ("a number", "Dirichlet concentration: smaller is more heterogeneous."),
    "classes_per_client": ("a whole number", "classes that each client holds."),
    "min_samples": ("a whole number", "samples that every client has at least."),
    "tau_ratio": ("a number", "size of the blocks that are dealt out, over that of the rarest class."),
}
"""The options of partitions: what is allowed, and the meaning. What the data determine is not among them."""


def about(cls: type[Any], option: str) -> str:
    """What a docstring, of the class or its nearest parent, says of an option; empty if none does."""
    for base in cls.__mro__:
        text = inspect.getdoc(base) or ""
        found = re.search(rf"^    {option}: (.+(?:\n {{8,}}\S.*)*)", text, re.MULTILINE)
        if found:
            return " ".join(found[1].split())
    return ""


def default_text(field: Any) -> str:
    """The default of a dataclass field, as it would be typed; empty for a required field."""
    if field.default is MISSING:
        return ""
    if field.default is None or field.default == ():
        return "none"
    if isinstance(field.default, tuple):
        return ",".join(map(str, field.default))
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
