"""The cost table measures what it says and stands beside the paper's."""

import pytest

from fedwcm.cli import main
from fedwcm.privacy import BenchmarkRow, benchmark, format_benchmark
from tests.privacy.support import needs_tenseal

ROW = BenchmarkRow(10, 100, 136, 88_500, 0.0012, 9_000_000, 13_500_000, 0.5)


def test_a_scaled_row_grows_in_proportion_to_the_clients() -> None:
    more = ROW.scale_to(10_000)
    assert (more.clients, more.bytes_up, more.bytes_down, more.seconds) == (
        10_000,
        900_000_000,
        1_350_000_000,
        50.0,
    )
    assert (more.ciphertext_bytes, more.seconds_per_client) == (88_500, 0.0012)


def test_the_table_has_the_papers_figures_beside_ours() -> None:
    text = format_benchmark([ROW])
    for figure in ("88,500", "88,556", "136", "0.0012", "0.0017", "22.50", "13.05", "10,000", "2,250.00"):
        assert figure in text


def test_a_row_that_the_paper_lacks_claims_no_figure_of_it() -> None:
    text = format_benchmark([BenchmarkRow(1000, 50, 8056, 177_000, 0.003, 1, 1, 1.0)])
    assert "88,5" not in text
    assert "0.0017" not in text
    assert "13.05" not in text


@needs_tenseal
def test_the_papers_sizes_are_reproduced() -> None:
    small, large = benchmark((10, 1000), clients=3)
    assert (small.plaintext_bytes, large.plaintext_bytes) == (136, 8056)
    assert small.ciphertext_bytes == pytest.approx(88_556, rel=0.003)
    assert large.ciphertext_bytes == pytest.approx(2 * 88_556, rel=0.003)
    assert 0 < small.seconds_per_client < small.seconds


@needs_tenseal
def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "privacy", "--classes", "10,20", "--clients", "3", "--more-clients", "30"]) == 0
    printed = capsys.readouterr().out
    assert "88,556" in printed
    assert "scaled up" in printed
