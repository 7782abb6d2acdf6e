"""The repository's Markdown as GitHub reads it: links, headings and code."""

import itertools
import json
import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.project import ROOT

GITHUB = MarkdownIt("commonmark").enable("table")
PATTERNS = ("*.md", "docs/**/*.md", "src/**/*.md", "examples/**/*.md", ".github/**/*.md", "tutorials/*.ipynb")
PAGES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))


def text_of(page: Path) -> str:
    """Return a page's Markdown; of a notebook, that of its Markdown cells."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def links_of(page: Path) -> list[str]:
    """Return the targets of a page's links and images."""
    inline = (child for token in tokens_of(page) for child in token.children or ())
    return [
        str(token.attrs.get("href") or token.attrs.get("src"))
        for token in inline
        if token.type in ("link_open", "image")
    ]


@cache
def tokens_of(page: Path) -> list[Token]:
    """Return a page's parts; each page is parsed once."""
    return GITHUB.parse(text_of(page))


@cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings: repeated ones are numbered."""
    headings = [
        after.content for token, after in itertools.pairwise(tokens_of(page)) if token.type == "heading_open"
    ]
    anchors: list[str] = []
    for heading in headings:
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        repeated = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", anchor) is not None for anchor in anchors)
        anchors.append(f"{slug}-{repeated}" if repeated else slug)
    return set(anchors)


def code_of(page: Path) -> list[str]:
    """Return the contents of a page's code blocks."""
    return [token.content for token in tokens_of(page) if token.type in ("fence", "code_block")]
