"""Verdicts: paired over seeds, corrected for the number of methods, and never across tasks."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedwcm
from fedwcm.api.comparison_result import Comparison
from fedwcm.cli.results_table import print_results
from fedwcm.config.recipes import RECIPES
from fedwcm.experiment.folder import ComparisonFolder, RunFolder
from fedwcm.experiment.records import ComparisonIndex
from fedwcm.methods import METHODS
from fedwcm.reports.comparison_figures import class_bars, class_figure, paired_differences
from fedwcm.reports.content import report_content
from fedwcm.reports.figures import Bars
from fedwcm.reports.load import MethodRuns, load_runs
from fedwcm.reports.page import page
from fedwcm.reports.statistics import differences
from fedwcm.reports.styles import FIXED, fixed_styles
from fedwcm.reports.sweep import ON_TEST, ON_VALIDATION, sweep_figures, sweep_of
from fedwcm.reports.table import columns_of, rows_of, tasks_of
from fedwcm.reports.table_files import csv_table, latex_table, markdown_table
from fedwcm.reports.text import run_headline
from fedwcm.reports.verdicts import _open, comparison_headline, verdict_records
from tests.reports.folders import amend_summary, write_run


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


def test_seeds_decide_whether_there_is_a_verdict(tmp_path: Path) -> None:
    skills = {"fedavg": 0.3, "fedcm": 0.9, "fedwcm": 0.9}
    one = comparison(tmp_path / "one", skills, 1)
    assert "no verdict" in comparison_headline(one)[0]
    assert {record["verdict"] for record in verdict_records(one)} == {"no verdict"}
    five = comparison(tmp_path / "five", skills, 5)
    best, second, third = rows_of(five)
    assert best.verdict == "best"
    assert second.verdict == "equivalent within 0.01"
    assert third.verdict.startswith("worse by 0.")
    assert third.method == "fedavg"
    overall, rare, *_ = comparison_headline(five)[0].splitlines()
    assert "It is better than fedavg" in overall
    assert "It is equivalent to fed" in overall
    assert " within 0.01 (5 seeds)" in overall
    assert rare.startswith("On the rare classes (elk) ")
    assert ", p < 0.001" in third.verdict
    found = {(r["method"], r["other"]): r for r in verdict_records(five) if r["metric"] == "final_accuracy"}
    assert len(found) == 3
    assert {found[key]["verdict"] for key in found if key[1] == "fedavg"} == {"better"}


def test_what_is_open_is_not_marked_and_says_by_how_much_and_what_is_missing(tmp_path: Path) -> None:
    best, other = rows_of(comparison(tmp_path / "few", {"fedavg": 0.8, "fedcm": 0.81}, 3))
    assert "final_accuracy" in best.best - other.best, "with three seeds only the highest is marked"
    groups = comparison(tmp_path / "open", {"fedavg": 0.5, "fedcm": 0.51}, 6)
    best, other = rows_of(groups)
    assert (best.verdict, "final_accuracy" in best.best, other.best & {"final_accuracy"}) == (
        "highest",
        True,
        set(),
    )
    assert other.verdict.startswith("undecided: −0.0")
    assert "; 6 seeds, " in other.verdict
    message = comparison_headline(groups)[0]
    assert "6 seeds do not decide between it and" in message
    assert "are needed." in message


def test_of_many_open_pairs_only_the_nearest_is_told_in_full() -> None:
    values = {f"m{i}": {seed: 0.9 - 0.01 * i + 0.05 * ((seed + i) % 3) for seed in range(5)} for i in range(4)}
    text = _open(differences(values)[:3])
    assert text.count("interval") == 1
    assert text.startswith("5 seeds do not decide between it and m")
    assert len(re.findall(r"\bm[0-3]\b", text)) == 3


def test_the_rounds_that_the_best_saves_are_counted(tmp_path: Path) -> None:
    groups = comparison(tmp_path, {"fedavg": 0.75, "fedcm": 0.95}, 3)
    assert "fedcm reaches 0.85 after" in comparison_headline(groups)[0]
    assert "fedavg not in every run." in comparison_headline(groups)[0]


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
        comparison(tmp_path, {"fedavg": skill, "fedcm": 0.3}, 2, grid=("partition.beta",), **options)  # type: ignore[arg-type]
    rows = rows_of(load_runs([tmp_path]))
    assert [(row.method, row.task, row.verdict != "best") for row in rows] == [
        ("fedavg", "partition.beta=0.1", False),
        ("fedcm", "partition.beta=0.1", True),
        ("fedavg", "partition.beta=1.0", False),
        ("fedcm", "partition.beta=1.0", True),
    ]
    table = list(csv.DictReader(io.StringIO(csv_table(rows))))
    assert [line["partition.beta"] for line in table] == ["0.1", "0.1", "1.0", "1.0"]
    assert float(table[0]["final_accuracy_mean"]) == pytest.approx(rows[0].values["final_accuracy"].mean)
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
    assert figure.log_x
    assert [(curve.name, list(curve.x)) for curve in figure.curves] == [
        ("fedavg", [0.01, 0.1]),
        ("fedcm", [0.01, 0.1]),
    ]
    sweep = sweep_of(groups)
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
            path = ComparisonFolder(tmp_path).run_path(f"fedavg (local.lr={lr})", seed)
            chosen_on = {"val_accuracy": validated, "val_balanced_accuracy": balanced}
            accuracy = RunFolder(path).summary().final_accuracy
            amend_summary(path, selected_round=1, selected_accuracy=accuracy, **chosen_on)
    groups = load_runs([tmp_path])
    sweep = sweep_of(groups)
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
    assert sorted(figure.categories) == ["10.0", "none"]


def test_an_option_that_is_a_list_can_be_swept(tmp_path: Path) -> None:
    for width in (10, 20):
        comparison(tmp_path, {"fedavg": width / 30}, 2, grid=("model.hidden",), model__hidden=[width])
    (figure,) = sweep_figures(load_runs([tmp_path]))
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
    assert [row.method for row in rows_of(groups) if "final_accuracy" in row.best] == ["fedcm"]
    assert [row.method for row in rows_of(comparison(tmp_path, {"fedprox": 0.99}, 1))][-2:] == [
        "fedprox",
        "fedwcm",
    ]


def test_numbers_are_of_finished_runs_and_the_row_says_of_how_many(tmp_path: Path) -> None:
    groups = comparison(tmp_path, {"fedavg": 0.9, "fedcm": 0.5}, 3)
    whole = {group.label: [run.outcome.final_accuracy for run in group.runs] for group in groups}
    stopped = RunFolder(groups[0].runs[2].path)
    stopped.summary_file.unlink()
    stopped.metrics_file.write_text(stopped.metrics_file.read_text().splitlines(keepends=True)[0])
    rows = {row.method: row for row in rows_of(load_runs([tmp_path]))}
    shown = rows["fedavg"].values["final_accuracy"]
    assert shown.mean == pytest.approx(np.mean(whole["fedavg"][:2]))  # type: ignore[arg-type]
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
    assert sum(cell is not None for _, cells in sweep.pivot.rows for cell in cells) == 4


def test_the_figure_of_differences_has_the_intervals_of_the_verdicts(tmp_path: Path) -> None:
    groups = comparison(tmp_path, {"fedavg": 0.3, "fedcm": 0.9, "fedwcm": 0.9}, 5)
    figure = paired_differences(groups)
    records = [record for record in verdict_records(groups) if record["method"] == rows_of(groups)[0].method]
    for series, metric in zip(figure.series, ("final_accuracy", "few"), strict=True):
        for record in (record for record in records if record["metric"] == metric):
            place = list(figure.row_labels).index(str(record["other"]))
            drawn = (series.means[place], series.lows[place], series.highs[place])
            assert drawn == pytest.approx((record["difference"], record["low"], record["high"]))
    assert paired_differences(comparison(tmp_path / "one", {"fedavg": 0.3, "fedcm": 0.9}, 1)) is None


def test_many_methods_make_the_accuracy_per_class_a_heat_map(tmp_path: Path) -> None:
    groups = comparison(tmp_path, {f"fedavg[local.lr={rate}]": 0.5 for rate in range(1, 9)}, 1)
    bars, cells = class_bars(groups), class_figure(groups)
    assert [tuple(row) for row in cells.matrices[0].rows] == [tuple(bar.values) for bar in bars.bars]
    assert isinstance(class_figure(groups[:7]), Bars)


def test_a_method_of_the_package_looks_the_same_in_every_report() -> None:
    alone, among = fixed_styles(["fedwcm"]), fixed_styles(["mine", "fedavg", "fedwcm", "other"])
    assert among["fedwcm"] == alone["fedwcm"] != among["fedavg"]
    assert len({style % 7 for style in among.values()}) == 4
    many = fixed_styles([*FIXED, *map(str, range(100))])
    assert len(set(many.values())) == len(many)
    assert set(FIXED) <= {*METHODS, *RECIPES}


def test_a_run_shows_its_classes_from_head_to_tail_with_their_intervals(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", skill=0.8)
    content = report_content(load_runs([run]), 10)
    assert [one.trained for one in content.classes] == sorted(
        (one.trained for one in content.classes), reverse=True
    )
    assert all(one.low < one.accuracy < one.high for one in content.classes)
    assert [label for label, _, _ in content.tiles[:2]] == ["balanced accuracy", "few"]
    assert page(content).count("<meter ") == len(content.classes) == 4


def test_on_an_unbalanced_test_mix_balanced_accuracy_leads_unless_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [1900, 100])
    inputs = rng.normal(size=(2000, 4)) + 0.7 * labels[:, None]
    parts = (inputs, labels, inputs, labels)

    def compared(select_by: str) -> Comparison:
        return fedwcm.compare(
            ["fedavg", "fedavg+prior_ce"],
            [0],
            tmp_path / select_by,
            dataset=parts,
            clients=4,
            participation=1.0,
            rounds=8,
            report=False,
            settings={"run.select_by": select_by},
        )

    balanced, accuracy = compared("balanced_accuracy"), compared("accuracy")
    assert [row.label for row in balanced.rows] == ["fedavg+prior_ce", "fedavg"]
    assert [row.label for row in accuracy.rows] == ["fedavg", "fedavg+prior_ce"]
    assert "fedavg+prior_ce ends with the highest balanced accuracy" in balanced.headline[0]
    assert "fedavg ends with the highest test accuracy" in accuracy.headline[0]
    assert [next(iter(columns_of(found.rows))) for found in (balanced, accuracy)] == [
        "balanced_accuracy",
        "final_accuracy",
    ]
