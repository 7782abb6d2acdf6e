"""The leaderboard from its file to its pages, at a tiny fraction; and the laws of its numbers."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedwcm.cli import main
from fedwcm.methods import METHODS
from fedwcm.reproduction.command import reproduce
from fedwcm.reproduction.leaderboard.board import load_board, make_plan
from fedwcm.reproduction.leaderboard.measure import Entry
from fedwcm.reproduction.leaderboard.page import _cell, _mean_rank
from fedwcm.reproduction.leaderboard.scores import MEASURES, Score, against, correlation, ranks
from fedwcm.reproduction.presets import SOURCES_IN, Scope

TINY = Scope(dataset=["digits"], methods=["fedavg", "fedwcm"], seeds=[100, 101], fraction=0.02)


def run(folder: Path, scope: Scope = TINY, *, start: bool = True) -> str:
    pages = reproduce(
        "leaderboard", **vars(scope), results=folder, pages=folder, pages_only=not start, say=lambda _: None
    )
    return pages.markdown.read_text()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished board, which tests only read, or copy."""
    folder = tmp_path_factory.mktemp("board")
    run(folder)
    return folder


def test_every_method_has_a_row_or_a_reason() -> None:
    board = load_board()
    assert {*METHODS} - {*board.rows} == {*board.excluded} & {*METHODS}
    assert not {*board.options} - {*board.rows}


def test_every_trial_of_every_row_is_a_run_and_all_rows_have_as_many() -> None:
    plan = make_plan(load_board(), Scope(dataset=["digits"]))
    keys = set()
    for row in plan.rows.values():
        assert len(row.trials) == len(plan.board.rates)
        keys |= {plan.key(cell) for trial in row.trials for cell in plan.cells("digits", row, trial, [0])}
    assert len(keys) == len(plan.rows) * len(plan.board.rates)


def test_a_row_is_tuned_then_judged_and_nothing_is_run_twice(finished: Path) -> None:
    text = (finished / "leaderboard.md").read_text()
    file = finished / "leaderboard" / "fedavg.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    trials, judged = lines[:-2], lines[-2:]
    assert [line["seed"] for line in judged] == [100, 101]
    assert not any("balanced" in line or "curve" in line for line in trials), "a trial has seen test data"
    by_setting: dict[str, list[float]] = {}
    for line in trials:
        by_setting.setdefault(json.dumps(line["trial"]), []).append(line["val"])
    best = max(by_setting, key=lambda setting: np.mean(by_setting[setting]))
    assert {json.dumps(line["trial"]) for line in judged} == {best}
    assert "digits" in text
    assert "2 of 2 rows" in text
    assert "storms (storms by season, nine classes): left out" in text
    before = file.read_bytes()
    assert run(finished) == text
    assert file.read_bytes() == before


def test_a_stopped_row_goes_on(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    whole = (finished / "leaderboard.md").read_text()
    file = tmp_path / "leaderboard" / "fedavg.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-3]) + "\n")
    assert "1 of 2 rows" in run(tmp_path, start=False)
    assert run(tmp_path) == whole
    again = [json.loads(line) for line in file.read_text().splitlines()]
    kept = [json.loads(line) for line in lines]
    assert [{**line, "seconds": 0} for line in again] == [{**line, "seconds": 0} for line in kept]


def test_the_page_holds_the_numbers_of_the_runs(finished: Path) -> None:
    page = (finished / "leaderboard.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    shown = data["tasks"]["digits"]["fedwcm"]["numbers"]["balanced"][0]
    lines = (finished / "leaderboard" / "fedwcm.jsonl").read_text().splitlines()
    assert shown == pytest.approx(np.mean([json.loads(line)["balanced"] for line in lines[-2:]]), abs=1e-4)
    assert "$" not in page.replace("${", ""), "a place of the template is empty"


def test_where_the_data_lies_does_not_matter() -> None:
    board = load_board()
    plan = replace(make_plan(board, TINY), digests={"activities": "abc"}, tasks=["activities"])
    (cell,) = plan.cells("activities", board.rows["fedavg"], {}, [0])
    moved = replace(cell, settings={**cell.settings, "data.dataset": "elsewhere/wisdm.npz"})
    assert plan.key(cell) == plan.key(moved)
    assert plan.key(cell) != plan.key(replace(cell, data_digest="abd"))


def test_stored_runs_are_shown_where_the_data_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCES_IN, str(tmp_path))
    scope = Scope(dataset=["activities"], methods=["fedavg"], seeds=[100])
    plan = make_plan(load_board(), scope)
    entry = Entry(plan, tmp_path / "leaderboard", "activities", plan.rows["fedavg"])
    entry.file.parent.mkdir()
    cells = [cell for _, cells in entry.trials() for cell in cells]
    cells += plan.cells("activities", entry.row, entry.row.trials[0], [100])
    numbers: dict[str, object] = {
        "val": 0.5,
        "accuracy": 0.7,
        "balanced": 0.625,
        "rare": 0.5,
        "ece": 0.1,
        "strength": None,
        "curve": {},
    }
    lines = [{"run": plan.key(cell), "task": "activities", **numbers} for cell in cells]
    entry.file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = run(tmp_path, scope)
    assert "activities (activities of people, six classes): 1 of 1 rows" in text
    assert "0.625" in text
    entry.file.write_text("")
    assert "people, six classes): not run" in run(tmp_path, scope), "it tried to train without data"


def test_a_file_adds_a_row_and_is_checked() -> None:
    board = load_board()
    assert board.rows["fedavg+ldam"].method == "fedavg[loss.name=ldam]"
    with pytest.raises(ValueError, match=r"trials = 7 is not allowed: it must be at most 6"):
        board._row_of("mine", 'method = "fedavg"\n' + '[[trials]]\n"local.lr" = 0.1\n' * 7)
    with pytest.raises(ValueError, match=r"unknown key of rows/mine.toml: 'trails'. Did you mean 'trials'"):
        board._row_of("mine", 'method = "fedavg"\ntrails = []')


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "digit"], "Did you mean 'digits'"),
        (["--seeds", "1,100"], "others than [0, 1]"),
        (["--only", "x=1"], "the leaderboard has tasks"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "leaderboard", *arguments]) != 0
    assert words in capsys.readouterr().err


def score(row: str, values: list[float]) -> Score:
    numbers = {measure: dict(enumerate(values)) for measure in MEASURES}
    return Score("task", row, 3, numbers, {}, {}, "")


def test_ranks_share_places_and_leave_out_what_is_incomplete() -> None:
    scores = [score("a", [0.5] * 3), score("b", [0.7] * 3), score("c", [0.5] * 3), score("d", [0.9] * 2)]
    assert ranks(scores, "balanced") == {"a": 2.5, "b": 1.0, "c": 2.5}
    assert ranks(scores, "ece") == {"a": 1.5, "b": 3.0, "c": 1.5}


def test_correlations_are_of_the_rows_that_both_rankings_have() -> None:
    first, second = {"a": 1.0, "b": 2.0, "c": 3.0}, {"c": 1.0, "z": 2.0, "a": 3.0, "b": 4.0}
    assert correlation(first, second) == pytest.approx((-0.5, 3))
    assert correlation(first, {"a": 1.0, "b": 2.0}) is None


def test_differences_are_paired_over_seeds() -> None:
    test = against(score("a", [0.6, 0.7, 0.8]), score("b", [0.5, 0.61, 0.69]), "rare")
    assert test.mean == pytest.approx(0.1)
    assert test.low > 0.07


def test_an_entry_without_trials_has_no_choice(tmp_path: Path) -> None:
    plan = make_plan(load_board(), TINY)
    entry = Entry(plan, tmp_path, "digits", plan.rows["fedavg"])
    assert entry.chosen_setting() is None
    assert entry.runs_left() == 6 * 2 + 2


def test_a_task_with_one_row_takes_no_place_from_the_others_and_has_no_best() -> None:
    def judged(task: str, row: str, value: float) -> Score:
        values = {measure: {100: value} for measure in MEASURES}
        return Score(task, row, 1, values, None, {}, "")

    scores = {
        "two": {"fedavg": judged("two", "fedavg", 0.5), "fedwcm": judged("two", "fedwcm", 0.6)},
        "one": {"fedavg": judged("one", "fedavg", 0.9)},
    }
    assert _mean_rank(scores, "balanced") == {"fedwcm": 1.0, "fedavg": 2.0}
    plan = make_plan(load_board(), Scope(dataset=["digits"], methods=["fedavg"]))
    assert "**" not in _cell(plan, scores["one"], "fedavg", "balanced")
    assert "**" in _cell(plan, scores["two"], "fedwcm", "balanced")
