"""`fedwcm partition --compare`: several divisions of the same samples, side by side."""

from pathlib import Path

import numpy as np
import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.data.partition import describe
from fedwcm.reports.division import COLUMNS, division_table, draw_divisions

PAPER = ["equal", "fedgrab", "creff", "balancefl"]


def test_the_papers_four_divide_the_same_samples_and_equal_the_single_ones() -> None:
    divisions = fedwcm.partitions(PAPER, dataset="digits", clients=20, beta=0.2)
    assert list(divisions) == PAPER
    totals = [division.counts.sum(axis=0).tolist() for division in divisions.values()]
    assert totals == [totals[0]] * 4
    for name, division in divisions.items():
        beta = {} if name == "balancefl" else {"beta": 0.2}
        alone = fedwcm.partition(dataset="digits", partition=name, clients=20, **beta)  # type: ignore[arg-type]
        np.testing.assert_array_equal(division.counts, alone.counts)
        assert division.config == alone.config


def test_options_in_brackets_win_and_shared_ones_reach_those_that_have_them() -> None:
    ways = ["equal", "equal[clients=5,beta=100]", "iid"]
    divisions = fedwcm.partitions(ways, dataset="digits", clients=10, beta=0.1)
    skewed, even, iid = divisions.values()
    assert [len(division.counts) for division in (skewed, even, iid)] == [10, 5, 10]
    assert even.statistics.distance_mean < skewed.statistics.distance_mean
    assert iid.config.partition.options == {"clients": 10}


def test_the_clients_of_every_sample_are_a_partition_already() -> None:
    x, y = np.zeros((12, 2), dtype=np.float32), np.tile(np.arange(3), 4)
    owners = np.repeat(np.arange(4), 3)
    with pytest.raises(ValueError, match=r"clients=… assigns every sample to a client.*use fedwcm\.partition"):
        fedwcm.partitions(["equal", "iid"], dataset=(x, y), clients=owners)


def test_an_option_that_none_of_the_partitions_has_is_refused() -> None:
    for key in ("partition.btea", "partition.shards_per_client"):
        with pytest.raises(ValueError, match=f"unknown option of these partitions: '{key}'"):
            fedwcm.partitions(["equal", "iid"], dataset="digits", settings={key: 2})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "equal,fedgrap"], "Did you mean 'fedgrab'"),
        (["--compare", "equal[beta=0.1"], "bracket is not closed"),
        (["--compare", "balancefl[beta=0.1]"], "beta"),
        (["--compare", "equal", "--partition", "iid"], "exclude each other"),
        (["--compare", ","], "--compare"),
    ],
)
def test_a_wrong_request_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", "--dataset", "digits", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_command_prints_a_table_and_draws_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is part of the extra fedwcm[report]")
    picture = tmp_path / "new" / "splits.svg"
    command = ["partition", "--dataset", "digits", "--clients", "10", "--out", str(picture)]
    assert main([*command, "--compare", ",".join(PAPER)]) == 0
    output = capsys.readouterr().out
    assert [line.split()[0] for line in output.splitlines()[1:5]] == PAPER
    assert str(picture) in output
    assert b"<?xml" in picture.read_bytes()[:100]
    assert main(command) == 0
    assert "classes per client median" in capsys.readouterr().out


def test_the_table_shows_what_the_statistics_say() -> None:
    counts = np.array([[4, 0], [0, 4]])
    header, row = division_table({"name": describe(counts)}).splitlines()
    assert all(column in header for column in COLUMNS.values())
    assert row.split() == ["name", "2", "4", "4", "4", "0.5", "1", "0.5", "0.5"]


@pytest.mark.parametrize("clients", [[1], [1, 8, 15]])
def test_any_number_of_divisions_can_be_drawn_with_one_client_or_a_hundred_classes(
    clients: list[int], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is part of the extra fedwcm[report]")
    rng = np.random.default_rng(0)
    divisions = {f"way {n}": rng.integers(0, 2, size=(n, 100)) for n in clients}
    path = tmp_path / "picture.png"
    assert draw_divisions(divisions, [str(c) for c in range(100)], "title", path)
    assert path.read_bytes().startswith(b"\x89PNG")
