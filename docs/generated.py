"""Parts of a page that a script writes: `<!-- NAME -->` … `<!-- end of NAME -->`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_blocks(page: Path, blocks: Mapping[str, Sequence[str]]) -> None:
    """Replace what stands between the marks of each name."""
    text = page.read_text(encoding="utf-8")
    for name, lines in blocks.items():
        marks = rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
        if not re.search(marks, text, re.DOTALL):
            raise ValueError(f"{page} has no place for {name!r}")
        body = "\n" + "\n".join(lines) + "\n\n"
        text = re.sub(marks, lambda found, body=body: found[1] + body + found[2], text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")
