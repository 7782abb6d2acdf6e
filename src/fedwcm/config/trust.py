"""Which code a configuration may run: what the user named, never what a folder from elsewhere names.

A component may be somebody's own code, named as `package.module:Name`. On the command line, in Python or in a
file of options, the user has named it. The `config.toml` of a run's folder was written by a run, perhaps by
somebody else's: what it names is run only with the user's word for it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from fedwcm.config.schema import COMPONENTS

LEFT_BY_A_RUN = ("metrics.jsonl", "summary.json", "split.json", "model.safetensors", "checkpoints")


class UntrustedCodeError(ValueError):
    """A folder names code that the user did not."""


def require_trust(
    settings: Mapping[str, object],
    source: Path,
    trust: bool,
    *,
    named: Mapping[str, object] | None = None,
    sections: Iterable[str] = COMPONENTS,
) -> None:
    """Refuse settings from this file that name code, unless it is trusted or the user has named the same.

    Args:
        settings: dotted options.
        source: the file that they come from.
        trust: whether the user trusts the file.
        named: dotted options that are the user's own.
        sections: the components that are going to be built.
    """
    own = named or {}
    for key in (f"{section}.name" for section in sections):
        name = str(settings.get(key, ""))
        if is_code(name) and not trust and own.get(key) != name:
            raise UntrustedCodeError(
                f"{source} names code: {key} = {name!r} would be imported and run. If you trust whoever "
                f"made this folder, and know what {name} is here, allow it with --trust (in Python: trust=True)"
            )


def is_code(name: str) -> bool:
    """Whether this is `package.module:Name` and not something of this package."""
    return ":" in name


def belongs_to_a_run(path: Path) -> bool:
    """Whether a file of options is the one that a run has left in its folder."""
    return path.name == "config.toml" and any((path.parent / name).exists() for name in LEFT_BY_A_RUN)
