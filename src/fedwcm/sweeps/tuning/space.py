"""The options to search, and their ranges: from text or a TOML file."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from fedwcm.config.component_text import split_list
from fedwcm.config.flags import option_key
from fedwcm.config.option_docs import kind_of
from fedwcm.config.options import parse_value
from fedwcm.config.settings import read_toml
from fedwcm.utils.json_record import is_number

ALLOWED = "log:LOW:HIGH, LOW:HIGH, int:LOW:HIGH, intlog:LOW:HIGH, or values A,B,C"

Space = dict[str, BaseDistribution]
"""Dotted options, with the range or the values to search."""


def space_from(ranges: Mapping[str, object], file: str | Path | None = None) -> Space:
    """The search space of options, by flag or dotted name, on top of that of a TOML file: ranges, or lists."""
    found: Space = {}
    if file is not None:
        found = {key: distribution(value, key) for key, value in read_toml(Path(file)).items()}
    for name, value in ranges.items():
        key = option_key(name)
        found[key] = distribution(value, key)
    if not found:
        raise ValueError(f"there is nothing to search: name an option and its range, {ALLOWED}")
    return found


def ranges_in(texts: Iterable[str]) -> dict[str, str]:
    """The ranges of `KEY=RANGE` texts."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--search {text!r} is not allowed: it must be KEY=RANGE, with {ALLOWED}")
        if name.strip() in found:
            raise ValueError(f"--search {name.strip()} is given twice: leave out one of them")
        found[name.strip()] = value.strip()
    return found


def distribution(value: object, key: str) -> BaseDistribution:
    """The range that a text describes, or the values in a list."""
    if isinstance(value, list | tuple):
        return CategoricalDistribution(value)
    parts = str(value).split(":")
    kind = parts[0] if len(parts) == 3 else ""
    if len(parts) == 1:
        return CategoricalDistribution([_scalar(parse_value(item)) for item in split_list(str(value))])
    ends = [parse_value(part) for part in parts[-2:]]
    low, high = (end if is_number(end) else None for end in ends)
    if kind.endswith("log") and low is not None and low <= 0:
        raise ValueError(f"search {key} = {value!r} is not allowed: it must be {kind}:LOW:HIGH with LOW above 0")
    wrong = len(parts) > 3 or kind not in ("", "log", "int", "intlog") or low is None or high is None
    if wrong or low is None or high is None or low >= high:
        raise ValueError(f"search {key} = {value!r} is not allowed: it must be {ALLOWED}, with LOW < HIGH")
    if kind.startswith("int"):
        return IntDistribution(int(low), int(high), log=kind == "intlog")
    if kind_of(key).startswith("a whole number"):
        whole = f"{'intlog' if kind else 'int'}:{parts[-2]}:{parts[-1]}"
        raise ValueError(f"search {key} = {value!r} is not allowed: it is a whole number, so write {whole}")
    return FloatDistribution(float(low), float(high), log=kind == "log")


def of_method(space: Mapping[str, BaseDistribution], options: Iterable[str]) -> Space:
    """The part of a space that applies to a method with these options: `method.x` only if it has x."""
    known = {f"method.{option}" for option in options}
    return {key: value for key, value in space.items() if not key.startswith("method.") or key in known}


def _scalar(value: object) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else str(value)
