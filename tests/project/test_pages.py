"""Every page holds together: its links lead somewhere, its commands exist, the site shows what GitHub shows."""

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from fedwcm.cli import command_line
from tests.project import ROOT
from tests.project.markdown import GITHUB, PAGES, anchors_of, code_of, links_of, text_of

PARSER = command_line()
name_of: Any = {"ids": lambda page: page.relative_to(ROOT).as_posix()}


@pytest.mark.parametrize("page", PAGES, **name_of)
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links_of(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        assert not anchor or anchor in anchors_of(target), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], **name_of)
def test_a_page_has_the_same_structure_on_github_and_on_the_site(page: Path) -> None:
    """The two dialects differ, for one, in what ends a paragraph and in how far a list's items are indented."""
    markdown = pytest.importorskip("markdown", reason="Markdown is not installed: it comes with fedwcm[docs]")
    extensions = ["tables", "pymdownx.superfences"]
    text = text_of(page)
    assert _structure(markdown.markdown(text, extensions=extensions)) == _structure(GITHUB.render(text))


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), **name_of)
def test_a_page_is_short(page: Path) -> None:
    """Words outside of tables and code."""
    prose = re.sub(r"(?ms)^```.*?^```|^(?:    |\||<!--).*?$", "", text_of(page))
    assert len(prose.split()) <= 1500


def _structure(html: str) -> dict[str, int]:
    tags = ("h1", "h2", "h3", "ul", "ol", "li", "table", "tr", "td", "pre", "code", "a", "img", "em", "strong")
    return {tag: len(re.findall(rf"<{tag}[ >]", html)) for tag in tags}


@pytest.mark.parametrize("page", PAGES, **name_of)
def test_commands_in_code_blocks_are_understood(page: Path) -> None:
    for command in _commands(page):
        try:
            PARSER.parse_args(shlex.split(command, comments=True)[1:])
        except SystemExit:
            pytest.fail(f"the command line refuses: {command}")


def test_there_are_commands_to_check() -> None:
    assert sum(len(_commands(page)) for page in PAGES) > 20


def _commands(page: Path) -> list[str]:
    """Return the lines of a page that start with `fedwcm`; an ellipsis stands for options of the reader's own."""
    lines = [line for block in code_of(page) for line in block.replace("\\\n", " ").splitlines()]
    commands = [line.removeprefix("$ ").replace("…", "") for line in lines]
    return [command for command in commands if command.startswith("fedwcm ")]
