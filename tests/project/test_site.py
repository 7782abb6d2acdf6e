"""The documentation site builds without a warning, and has what it should."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import fedwcm
from tests.project import ROOT
from tests.reports.browser import browser, require_browser, show_page

WIDER = """return [...document.querySelectorAll('.md-content table')]
    .filter(table => table.scrollWidth > table.closest('.md-typeset__scrollwrap').clientWidth + 1)
    .map(table => table.rows[0].innerText)"""
"""The heads of the tables that have to be scrolled."""

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("material", "mkdocstrings", "nbconvert")),
    reason="the tools of the site are not installed: pip install 'fedwcm[docs]'",
)

NOTEBOOK = {
    "cells": [
        {
            "cell_type": "markdown",
            "metadata": {},
            "source": "# A trial\n\nSee [the data](../docs/data.md#your-own).",
        },
        {
            "cell_type": "code",
            "metadata": {},
            "execution_count": 1,
            "source": "raise SystemExit('a build executes nothing')",
            "outputs": [{"output_type": "display_data", "metadata": {}, "data": {"image/png": "aGVsbG8="}}],
        },
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 4,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site of a copy of this repository that has one more tutorial."""
    copy = _copy(tmp_path_factory.mktemp("repository"))
    done = _build(copy)
    assert done.returncode == 0, done.stderr
    return copy / "site"


def test_the_front_page_is_the_readme(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="data.html"' in page
    assert 'src="docs/' not in page


def test_navigation_has_its_groups_and_the_search_leads_to_guides(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    groups = ("Get started", "Tutorials", "How-to", "Reference", "Explanation", "Results")
    positions = [page.index(f"{group}\n") for group in groups]
    assert positions == sorted(positions)
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    pages = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"data.html", "results/recipe.html"} <= pages
    assert "results/table4-fashion-mnist-0.2.html" not in pages
    assert (site / "search" / "search_index.js").exists()  # the search works in a folder that is read from disk
    assert "--help-all" in (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert page.index('id="four-doors"') < page.index('id="install"')


def test_reproduced_tables_fit_a_laptop(site: Path, tmp_path: Path) -> None:
    require_browser()
    with browser(tmp_path) as driver:
        for page in sorted((site / "results").glob("table*.html"), key=_columns)[-3:]:
            show_page(driver, page)
            assert driver.execute_script(WIDER) == [], page.name


def _columns(page: Path) -> int:
    """The columns of a page's widest table."""
    return max(head.count("<th") for head in page.read_text(encoding="utf-8").split("<thead>"))


def test_formulas_are_set_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    page = (site / "methods" / "fedwcm.html").read_text(encoding="utf-8")
    assert r"\text{softmax}_{k}(s_{k}/T)" in page
    assert r"\hat{B}" in page
    code = (site / "python.html").read_text(encoding="utf-8")
    assert "arithmatex" not in code
    sources = re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?:[^"]+)', page)
    assert sources == []


def test_reference_has_every_public_name(site: Path) -> None:
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    documented = {line.split(" ", 1)[0] for line in inventory.splitlines()}
    public = [getattr(fedwcm, name) for name in fedwcm.__all__]
    missing = {f"{thing.__module__}.{thing.__qualname__}" for thing in public} - documented
    assert not missing
    assert {"fedwcm.balance.client_weights", "fedwcm.testing.check_method"} <= documented


def test_a_notebook_becomes_a_page(site: Path) -> None:
    page = (site / "tutorials" / "trial.html").read_text(encoding="utf-8")
    assert 'href="../data.html#your-own"' in page
    image = re.search(r'src="(trial_files/[^"]+\.png)"', page)
    assert (site / "tutorials" / image.group(1)).read_bytes() == b"hello"
    assert 'href="tutorials/trial.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_a_report_does_not_take_the_place_of_a_page(site: Path) -> None:
    assert "<html" in (site / "results" / "theory.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ("[nowhere](nowhere.md)", "nowhere.md"),
        ("[no heading](data.md#nowhere)", "#nowhere"),
        ("[no file](../configs/nowhere.toml)", "configs/nowhere.toml"),
    ],
)
def test_a_broken_link_is_an_error(tmp_path: Path, broken: str, complaint: str) -> None:
    copy = _copy(tmp_path)
    with (copy / "docs" / "models.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{broken}\n")
    done = _build(copy)
    assert done.returncode != 0
    assert complaint in done.stderr


def _copy(to: Path) -> Path:
    """Copy what the site is made of, and add a tutorial and a report as `fedwcm reproduce` leaves it."""
    for name in ("docs", "configs", "examples", "src", "tools", "tutorials"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "LICENSE", ROOT / "CITATION.cff"):
        shutil.copy(path, to)
    (to / "docs" / "results" / "theory.html").write_text("a report")
    (to / "tutorials" / "trial.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    return to


def _build(copy: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
