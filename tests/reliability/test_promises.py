"""Every promise of docs/reliability.md and docs/scale.md is held by a test that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def promised(page: str = "reliability.md") -> list[tuple[str, str]]:
    """The file and the name of every test that a page names; `::test_x` is in the file named last."""
    text, file, found = (ROOT / "docs" / page).read_text(encoding="utf-8"), "", []
    for named, test in re.findall(r"`(tests/[\w/]+\.py)?::(test_\w+)`", text):
        file = named or file
        found.append((file, test))
    return found


@pytest.mark.parametrize(("page", "least"), [("reliability.md", 40), ("scale.md", 10)])
def test_every_test_that_the_page_names_exists(page: str, least: int) -> None:
    assert len(promised(page)) > least
    for file, test in promised(page):
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_the_page_names_every_test_of_this_folder() -> None:
    named = {test for _, test in promised()}
    small = {
        "test_what_is_written_is_read_and_grows_when_it_must",
        "test_within_a_process_too_and_nothing_is_left_behind",
    }
    for file in Path(__file__).parent.glob("test_*.py"):
        if file != Path(__file__):
            assert (
                set(re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.M)) <= named | small
            ), file
