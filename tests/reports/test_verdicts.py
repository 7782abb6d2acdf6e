"""Verdicts: paired over seeds, corrected for the number of methods, and never across tasks."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from fedwcm.cli.results_table import print_results
from fedwcm.experiment.comparison_folder import ComparisonFolder
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.records import ComparisonIndex
from fedwcm.reports.content import report_content
from fedwcm.reports.figures import Bars, Curves
from fedwcm.reports.load import MethodRuns, load_runs
from fedwcm.reports.page import page
from fedwcm.reports.statistics import Spread, differences, holm, paired_test, spread
from fedwcm.reports.sweep import ON_TEST, ON_VALIDATION, sweep_figures, sweep_of
from fedwcm.reports.table import rows_of, tasks_of
from fedwcm.reports.table_files import csv_table, latex_table, markdown_table
from fedwcm.reports.text import run_headline
from fedwcm.reports.verdicts import comparison_headline, verdict_records
from tests.reports.folders import write_run


def comparison(
    out: Path,
    skills: dict[str, float],
    seeds: int,
    *,
    jobs: int = 1,
    grid: tuple[str, ...] = (),
    **options: object,
) -> list[MethodRuns]:
    """Runs of methods with these skills, as `compare` leaves them."""
    index = ComparisonFolder(out).index()
    labels = dict(index.labels)
    suffix = ", ".join(f"{key}={options[key.replace('.', '__')]}" for key in grid)
    for method, skill in skills.items():
        label = f"{method} ({suffix})" if suffix else method
        for seed in range(seeds):
            path = ComparisonFolder(out).run_path(label, seed)
            folder = RunFolder(write_run(path, method, seed, skill=skill, **options))  # type: ignore[arg-type]
            config = folder.config()
            folder.write_config(replace(config, run=replace(config.run, name=method)))
            labels[path.name] = label
    ComparisonFolder(out).write_index(ComparisonIndex(labels=labels, jobs=jobs, grid=grid))
    return load_runs([out])


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=8), st.integers(0, 9))
def test_what_all_runs_of_a_seed_share_does_not_count(pairs: list[tuple[float, float]], seed: int) -> None:
    one, other = np.array(pairs).T
    luck = np.random.default_rng(seed).normal(size=len(pairs))
    plain = paired_test((one - other).tolist())
    shifted = paired_test(((one + luck) - (other + luck)).tolist())
    assert plain is not None
    assert shifted is not None
    if np.ptp(one - other) > 1e-6:
        assert shifted.p == pytest.approx(plain.p, abs=1e-6)
        known = stats.ttest_rel(one, other)
        assert plain.p == pytest.approx(known.pvalue)
        assert (plain.low, plain.high) == pytest.approx(tuple(known.confidence_interval(0.95)), abs=1e-9)
    assert plain.low - 1e-12 <= plain.mean <= plain.high + 1e-12


def test_equal_differences_prove_no_more_than_their_number() -> None:
    assert paired_test([0.1]) is None
    tests = [paired_test([0.25] * seeds) for seeds in (2, 6)]
    assert [test.p for test in tests if test] == [0.5, 2.0**-5]
    nothing = paired_test([0.0, 0.0, 0.0])
    assert nothing is not None
    assert nothing.p == 1.0


def test_the_spread_is_that_of_a_sample_and_none_of_one_number() -> None:
    assert spread([0.4]) == Spread(0.4, 0.0, 1)
    assert spread([1.0, 3.0]) == Spread(2.0, pytest.approx(2**0.5), 2)


def test_holm_multiplies_the_smallest_by_their_number_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_more_methods_ask_for_a_smaller_p_value() -> None:
    values = {"a": {0: 0.9, 1: 0.91, 2: 0.905}, "b": {0: 0.8, 1: 0.79, 2: 0.81}}
    alone = differences(values)[0]
    crowd = differences({**values, **{f"c{i}": {0: 0.5, 1: 0.9, 2: 0.1} for i in range(8)}})
    among = next(pair for pair in crowd if (pair.method, pair.other) == ("a", "b"))
    assert alone.distinguishable
    assert alone.corrected is not None
    assert among.corrected == pytest.approx(9 * alone.corrected)
    assert len(crowd) == 10 * 9 / 2


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_method_is_not_better_for_seeds_that_the_other_does_not_have(sign: float) -> None:
    values = {
        "a": {0: sign * 0.9, 1: sign * 0.5, 2: sign * 0.5},
        "b": {1: sign * 0.6, 2: sign * 0.601},
    }
    (pair,) = differences(values, lower_is_better=sign < 0)
    assert (pair.method, pair.other, pair.seeds) == ("a", "b", 2)
    assert pair.reversed
    assert not pair.distinguishable


def test_a_method_with_few_seeds_changes_nothing_between_the_others() -> None:
    several = {
        "a": {0: 0.700, 1: 0.752, 2: 0.748, 3: 0.751, 4: 0.749, 5: 0.750},
        "b": {0: 0.701, 1: 0.700, 2: 0.699, 3: 0.702, 4: 0.698, 5: 0.700},
    }
    (alone,) = differences(several)
    among = [pair for pair in differences({**several, "c": {0: 0.4}}) if pair.other == "b"]
    assert alone.distinguishable
    assert among == [alone]


def test_seeds_decide_whether_there_is_a_verdict(tmp_path: Path) -> None:
    skills = {"fedavg": 0.3, "fedcm": 0.9, "fedwcm": 0.9}
    one = comparison(tmp_path / "one", skills, 1)
    assert "no verdict" in comparison_headline(one)[0]
    assert {record["verdict"] for record in verdict_records(one)} == {"no verdict"}
    five = comparison(tmp_path / "five", skills, 5)
    best, second, third = rows_of(five)
    assert best.verdict == "best"
    assert second.verdict == "not distinguishable with 5 seeds"
    assert third.verdict.startswith("worse by 0.")
    assert third.method == "fedavg"
    said = comparison_headline(five)[0]
    assert "It is better than fedavg" in said
    assert "5 seeds it is not distinguishable from" in said
    found = {(r["method"], r["other"]): r for r in verdict_records(five) if r["metric"] == "final_accuracy"}
    assert len(found) == 3
    assert {found[key]["verdict"] for key in found if key[1] == "fedavg"} == {"better"}


def test_all_that_tie_are_marked_and_times_side_by_side_are_not(tmp_path: Path) -> None:
    skills = {"fedavg": 0.3, "fedcm": 0.9, "fedwcm": 0.9}
    alone, together = (rows_of(comparison(tmp_path / str(jobs), skills, 5, jobs=jobs)) for jobs in (1, 2))
    assert [("final_accuracy" in row.best) for row in alone] == [True, True, False]
    assert not any("seconds_per_round" in row.best for row in together)


def test_a_method_that_diverged_is_last_marked_and_not_compared(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.5, "fedcm": 0.6}, 2)
    groups = comparison(tmp_path, {"fedwcm": 0.9}, 2, diverged="the model has a NaN")
    *_, last = rows_of(groups)
    assert (last.method, last.verdict, last.best) == ("fedwcm", "diverged", frozenset())
    assert "fedwcm (diverged)" in latex_table(rows_of(groups))
    assert not [record for record in verdict_records(groups) if "fedwcm" in (record["method"], record["other"])]


def test_other_data_is_another_task_and_swept_options_have_columns(tmp_path: Path) -> None:
    for beta, skill in (("0.1", 0.4), ("1.0", 0.9)):
        options = {"partition__beta": float(beta), "local__lr": 0.1}
        comparison(tmp_path, {"fedavg": skill, "fedcm": 0.3}, 2, grid=("partition.beta",), **options)
    rows = rows_of(load_runs([tmp_path]))
    assert [(row.method, row.task, row.verdict != "best") for row in rows] == [
        ("fedavg", "partition.beta=0.1", False),
        ("fedcm", "partition.beta=0.1", True),
        ("fedavg", "partition.beta=1.0", False),
        ("fedcm", "partition.beta=1.0", True),
    ]
    table = list(csv.DictReader(io.StringIO(csv_table(rows))))
    assert [line["partition.beta"] for line in table] == ["0.1", "0.1", "1.0", "1.0"]
    assert float(table[0]["final_accuracy_mean"]) == pytest.approx(rows[0].values["final_accuracy"].mean)  # type: ignore[union-attr]
    assert all(float(line["final_accuracy_std"]) >= 0 and line["final_accuracy_n"] == "2" for line in table)
    assert len({record["task"] for record in verdict_records(load_runs([tmp_path]))}) == 2


def test_one_seed_leaves_the_standard_deviation_empty(tmp_path: Path) -> None:
    (line,) = csv.DictReader(io.StringIO(csv_table(rows_of(comparison(tmp_path, {"fedavg": 0.5}, 1)))))
    assert line["final_accuracy_std"] == ""
    assert line["final_accuracy_n"] == "1"


def test_the_latex_table_has_rules_columns_of_one_number_and_escaped_names(tmp_path: Path) -> None:
    text = latex_table(rows_of(comparison(tmp_path, {"fedcm[momentum_norm=nominal]": 0.5, "fedavg": 0.6}, 2)))
    assert r"fedcm[momentum\_norm=nominal]" in text
    assert [rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [True] * 3
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({line.count(" & ") for line in lines}) == 1
    assert "l" + "r" * lines[0].count(" & ") + "}" in text


def test_a_grid_shows_its_options_and_the_best_setting_of_each_method(tmp_path: Path) -> None:
    skills = {0.01: {"fedavg": 0.3, "fedcm": 0.9}, 0.1: {"fedavg": 0.8, "fedcm": 0.4}}
    for lr, members in skills.items():
        comparison(tmp_path, members, 3, grid=("local.lr",), local__lr=lr)
    groups = load_runs([tmp_path])
    (figure,) = sweep_figures(groups)
    assert isinstance(figure, Curves)
    assert figure.log_x
    assert [(curve.name, list(curve.x)) for curve in figure.curves] == [
        ("fedavg", [0.01, 0.1]),
        ("fedcm", [0.01, 0.1]),
    ]
    sweep = sweep_of(groups)
    assert sweep is not None
    assert [(choice.method, choice.setting) for choice in sweep.choices] == [
        ("fedavg", "local.lr=0.1"),
        ("fedcm", "local.lr=0.01"),
    ]
    assert sweep.chosen_by == ON_TEST == comparison_headline(groups)[-1]  # there is no validation data
    assert sweep.pivot.values == ("0.01", "0.1")
    rows = {row.label: row.values["final_accuracy"] for row in rows_of(groups)}
    assert sweep.pivot.rows[0] == (("fedavg",), (rows["fedavg (local.lr=0.01)"], rows["fedavg (local.lr=0.1)"]))
    assert "What the options do" in page(report_content(groups, 10))


@pytest.mark.parametrize(
    ("select_by", "chosen", "value"), [("accuracy", "0.1", 0.7), ("balanced_accuracy", "0.01", 0.6)]
)
def test_the_validation_data_chooses_the_setting_and_not_the_test_data(
    tmp_path: Path, select_by: str, chosen: str, value: float
) -> None:
    for lr, skill, validated, balanced in ((0.01, 0.4, 0.5, 0.6), (0.1, 0.4, 0.7, 0.3), (1.0, 0.9, 0.1, 0.1)):
        comparison(tmp_path, {"fedavg": skill}, 2, grid=("local.lr",), local__lr=lr, run__select_by=select_by)
        for seed in (0, 1):
            folder = RunFolder(ComparisonFolder(tmp_path).run_path(f"fedavg (local.lr={lr})", seed))
            summary = folder.summary()
            tested = {"selected_round": 1, "selected_accuracy": summary.final_accuracy, "val_accuracy": validated}
            folder.write_summary(replace(summary, **tested, val_balanced_accuracy=balanced))
    groups = load_runs([tmp_path])
    sweep = sweep_of(groups)
    assert sweep is not None
    assert [choice.setting for choice in sweep.choices] == [f"local.lr={chosen}"]
    metric = select_by.replace("_", " ")
    assert sweep.chosen_by == ON_VALIDATION.format(metric=metric) == comparison_headline(groups)[-1]
    best = next(group for group in groups if group.settings["local.lr"] == float(chosen))
    assert f"the best on the validation data ({metric} {value:.3f})" in " ".join(run_headline(best.runs[0]))
    comparison(tmp_path, {"fedavg": 0.0}, 1, grid=("local.lr",), local__lr=9.0, rounds=1, diverged="at once")
    after = sweep_of(load_runs([tmp_path]))
    assert after is not None, "a run that was never evaluated says nothing of its data"
    assert (after.chosen_by, after.choices) == (sweep.chosen_by, sweep.choices)


def test_a_tie_with_one_seed_is_called_one(tmp_path: Path) -> None:
    groups = comparison(tmp_path, {"fedavg": 0.5, "fedcm": 0.5}, 1)
    assert "is equal to it, with one seed" in " ".join(comparison_headline(groups))


def test_the_heading_of_short_names_is_not_broken(tmp_path: Path) -> None:
    (row,) = rows_of(comparison(tmp_path, {"fedavg": 0.5}, 1))
    screen = Console(record=True, width=120, file=io.StringIO())
    print_results([replace(row, method="sam")], screen, "table.csv")
    assert " method " in screen.export_text()


def test_equal_differences_of_values_that_vary_are_judged_by_how_they_vary() -> None:
    few = {"a": {0: 0.944, 1: 0.888, 2: 0.889}, "b": {0: 0.056, 1: 0.0, 2: 0.001}}
    (pair,) = differences(few)
    assert pair.distinguishable
    assert pair.test is not None
    assert pair.test.low < pair.test.mean < pair.test.high
    many = {"a": {seed: 0.1 * seed for seed in range(10)}, "b": {seed: 0.1 * seed - 0.02 for seed in range(10)}}
    assert differences(many)[0].distinguishable  # by their signs: the spread of the seeds says nothing
    constant = {"a": dict.fromkeys(range(3), 0.9), "b": dict.fromkeys(range(3), 0.1)}
    assert not differences(constant)[0].distinguishable


def test_comparisons_with_different_grids_share_a_table(tmp_path: Path) -> None:
    for rate in (0.1, 0.2):
        comparison(tmp_path / "rates", {"fedavg": rate}, 2, grid=("local.lr",), local__lr=rate)
        size = int(100 * rate)
        comparison(tmp_path / "sizes", {"fedprox": rate}, 2, grid=("local.batch_size",), local__batch_size=size)
    comparison(tmp_path / "plain", {"fedcm": 0.5}, 2)
    groups = load_runs([tmp_path / name for name in ("rates", "sizes", "plain")])
    rows = rows_of(groups)
    table = {row.label: row.options for row in rows}
    assert {tuple(options) for options in table.values()} == {("local.lr", "local.batch_size")}
    assert [options["local.batch_size"] for label, options in table.items() if "fedprox" in label] == ["20", "10"]
    assert len({len(line) for line in csv.reader(io.StringIO(csv_table(rows)))}) == 1
    assert len({line.count("|") for line in markdown_table(rows).splitlines()}) == 1
    assert "What the options do" in page(report_content(groups, 10))


def test_a_setting_that_is_none_is_in_the_figure(tmp_path: Path) -> None:
    for clip in (None, 10.0):
        comparison(tmp_path, {"fedavg": 0.5}, 2, grid=("local.clip",), local__clip=clip)
    (figure,) = sweep_figures(load_runs([tmp_path]))
    assert isinstance(figure, Bars)
    assert sorted(figure.categories) == ["10.0", "none"]


def test_an_option_that_is_a_list_can_be_swept(tmp_path: Path) -> None:
    for width in (10, 20):
        comparison(tmp_path, {"fedavg": width / 30}, 2, grid=("model.hidden",), model__hidden=[width])
    (figure,) = sweep_figures(load_runs([tmp_path]))
    assert isinstance(figure, Bars)
    assert list(figure.categories) == ["[10]", "[20]"]


def test_a_run_that_lies_in_two_folders_counts_once(tmp_path: Path) -> None:
    alone = comparison(tmp_path / "one", {"fedavg": 0.5}, 3)
    comparison(tmp_path / "two", {"fedavg": 0.5}, 3)
    with pytest.warns(UserWarning, match="is not counted: .* has the same options and seed"):
        (both,) = rows_of(load_runs([tmp_path]))
    assert both.values == rows_of(alone)[0].values
    assert both.runs == 3


def test_a_method_with_one_seed_is_not_bold_for_want_of_a_test(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.7, "fedcm": 0.71}, 3)
    groups = comparison(tmp_path, {"fedwcm": 0.1}, 1)
    assert [row.method for row in rows_of(groups) if "final_accuracy" in row.best] == ["fedcm", "fedavg"]


def test_numbers_are_of_finished_runs_and_the_row_says_of_how_many(tmp_path: Path) -> None:
    groups = comparison(tmp_path, {"fedavg": 0.9, "fedcm": 0.5}, 3)
    whole = {group.label: [run.outcome.final_accuracy for run in group.runs] for group in groups}
    stopped = RunFolder(groups[0].runs[2].path)
    stopped.summary_file.unlink()
    stopped.metrics_file.write_text(stopped.metrics_file.read_text().splitlines(keepends=True)[0])
    rows = {row.method: row for row in rows_of(load_runs([tmp_path]))}
    shown = rows["fedavg"].values["final_accuracy"]
    assert shown is not None
    assert shown.mean == pytest.approx(np.mean(whole["fedavg"][:2]))
    assert (rows["fedavg"].finished, rows["fedavg"].runs, shown.runs) == (2, 3, 2)
    assert "2 of 3" in markdown_table(list(rows.values()))
    assert f"{shown.mean:.3f}" in comparison_headline(load_runs([tmp_path]))[0]


def test_runs_on_data_that_has_changed_are_not_compared(tmp_path: Path) -> None:
    for number, method in enumerate(("fedavg", "fedcm")):
        path = write_run(tmp_path / method, method, data__dataset="own.csv")
        split = RunFolder(path).partition()
        assert split is not None
        RunFolder(path).write_partition(replace(split, digest=f"{number}" * 16))
    groups = load_runs([tmp_path])
    assert [task.name for task in tasks_of(groups)] == ["data 00000000", "data 11111111"]
    assert [row.verdict for row in rows_of(groups)] == ["–", "–"]


def test_what_tells_two_grids_apart_is_a_column_of_their_table(tmp_path: Path) -> None:
    for epochs in (1, 5):
        out, labels = tmp_path / str(epochs), {}
        for rate in (0.01, 0.1):
            settings = {"local__lr": rate, "local__epochs": epochs, "run__name": "fedavg"}
            write_run(out / "runs" / f"run{rate}", "fedavg", skill=0.9 - rate / epochs, **settings)  # type: ignore[arg-type]
            labels[f"run{rate}"] = f"fedavg (local.lr={rate})"
        ComparisonFolder(out).write_index(ComparisonIndex(labels=labels, grid=("local.lr",)))
    groups = load_runs([tmp_path / "1", tmp_path / "5"])
    points = [(row.method, *row.options.values()) for row in rows_of(groups)]
    assert sorted(points) == [("fedavg", rate, epochs) for rate in ("0.01", "0.1") for epochs in ("1", "5")]
    sweep = sweep_of(groups)
    assert sweep is not None
    assert sum(cell is not None for _, cells in sweep.pivot.rows for cell in cells) == 4


def test_a_method_of_one_seed_does_not_take_the_verdict_from_the_others() -> None:
    judged = {"a": {0: 0.8, 1: 0.82, 2: 0.81}, "b": {0: 0.7, 1: 0.71, 2: 0.72}}
    alone = differences(judged)[0]
    pair = differences({"lucky": {0: 0.99}, **judged})[0]
    assert (
        (pair.method, pair.other, pair.test) == (alone.method, alone.other, alone.test) == ("a", "b", alone.test)
    )
