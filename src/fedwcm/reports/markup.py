"""Small pieces of HTML that several parts of the page share."""

import re
from html import escape


def sentence(text: str) -> str:
    """A sentence as HTML, with flags such as `--set local.lr=0.1` as code that stays on a line."""
    return re.sub(r"(?<!\S)\(?--[a-z][\w-]*(?: [\w.]+=[\w.]*\w| [\d.-]*\d)?", _code, escape(text))


def _code(found: re.Match[str]) -> str:
    flag = found[0].removeprefix("(")
    return found[0].removesuffix(flag) + f"<code>{flag}</code>"


def breakable(name: str) -> str:
    """A name as HTML that may break after its commas, square brackets and equals signs."""
    return re.sub(r"([,\[=])", r"\1<wbr>", escape(name))
