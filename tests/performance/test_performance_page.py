"""docs/performance.md is what the committed results say."""

import json

from tools.make_performance_page import PAGE, RESULTS, page


def test_the_page_is_made_of_the_committed_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(RESULTS.read_text(encoding="utf-8")))


def test_the_committed_results_name_no_folder_and_no_address() -> None:
    text = RESULTS.read_text(encoding="utf-8")
    assert "://" not in text
    assert not any(f"/{root}/" in text for root in ("home", "root", "tmp", "usr", "work"))


def test_growth_and_the_step_of_a_network_are_shown_where_they_were_measured() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    about = {key: next(iter(results["groups"].values()))[key] for key in ("machine", "other_load")}
    results["growth"] = {**about, "curves": {"runs": [[10, 0.5], [100, 1.0], [1000, 10.0]]}}
    results["resnet"] = {**about, "gflop": 10.0, "peak_gflops": 200.0, "seconds": {"a": 0.1}, "parts": {"b": 0.25}}
    text = page(results)
    assert "| runs | 10: 0.5 s, 100: 1 s, 1,000: 10 s | 1.00 |" in text
    assert "50% of the roofline" in text
    assert "| b | 25% |" in text
