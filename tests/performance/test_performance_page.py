"""docs/performance.md is what the committed results say."""

import json

from tools.make_performance_page import PAGE, RESULTS, page


def test_the_page_is_made_of_the_committed_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(RESULTS.read_text(encoding="utf-8")))


def test_the_committed_results_name_no_folder_and_no_address() -> None:
    text = RESULTS.read_text(encoding="utf-8")
    assert "://" not in text
    assert not any(f"/{root}/" in text for root in ("home", "root", "tmp", "usr", "work"))
