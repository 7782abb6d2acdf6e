"""Parts of a page that a script writes: `<!-- NAME -->` … `<!-- end of NAME -->`."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def write_blocks(page: Path, blocks: Mapping[str, Sequence[str]]) -> None:
    """Replace what stands between the marks of each name."""
    text = page.read_text(encoding="utf-8")
    for name, lines in blocks.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, ends, after = rest.partition(end)
        if not (found and ends):
            raise ValueError(f"{page} has no place for {name!r}")
        text = "\n".join([before + begin, *lines, "", end + after])
    page.write_text(text, encoding="utf-8")
