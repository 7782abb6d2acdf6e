"""What a report tells is what the folders hold."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.records import ComparisonIndex, PartitionRecord, PersonalizationRecord, outcome_of
from fedwcm.reports.comparison_figures import class_bars
from fedwcm.reports.content import ReportContent, report_content
from fedwcm.reports.figures import thin_curve
from fedwcm.reports.load import load_runs
from tests.reports.folders import CLASSES, amend_summary, write_comparison, write_diverging_losses, write_run


def content_of(*folders: Path, limit: int = 200) -> ReportContent:
    return report_content(load_runs(list(folders)), limit)


def figures(content: ReportContent) -> dict[str, Any]:
    return {figure.key: figure for figure in content.figures}


def curves(figure: Any) -> dict[str, tuple[list[float], list[float | None]]]:
    return {curve.name: (list(curve.x), list(curve.y)) for curve in figure.curves}


def test_the_curves_of_a_run_are_its_records(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    records = RunFolder(path).metrics()
    drawn = figures(content_of(path))
    for key, name, field in (
        ("accuracy", "test", "test_accuracy"),
        ("loss", "training", "train_loss"),
        ("shots", "few", "few"),
        ("momentum", "momentum gain", "gain"),
        ("seconds", "since the start", "seconds"),
    ):
        rounds, values = curves(drawn[key])[name]
        assert rounds == [record.round for record in records]
        assert values == [record.number(field) for record in records]


def test_classes_run_from_head_to_tail_with_their_share_and_accuracy(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    counts = RunFolder(path).summary().train_counts
    accuracies = RunFolder(path).metrics()[-1].per_class_accuracy
    assert accuracies is not None
    points = figures(content_of(path))["classes"]
    drawn = {
        label: (x, y)
        for series in points.series
        for x, y, label in zip(series.x, series.y, series.labels, strict=True)
    }
    assert drawn == {
        name: (pytest.approx(100 * counts[i] / sum(counts)), accuracies[i]) for i, name in enumerate(CLASSES)
    }


def test_the_split_is_that_of_the_run_and_its_rows_sum_to_the_class_totals(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    split = RunFolder(path).partition()
    heatmap = figures(content_of(path))["split"]
    drawn = np.array([[cell or 0 for cell in row] for row in heatmap.matrices[0].rows])
    assert (drawn == np.array(split.counts).T).all()
    assert tuple(drawn.sum(axis=1)) == split.totals


def test_weights_stand_at_their_client_and_round_and_average_to_an_even_share(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    heatmap = figures(content_of(path))["weights"]
    for column, record in enumerate(RunFolder(path).metrics()):
        cells = {int(heatmap.row_labels[row]): line[column] for row, line in enumerate(heatmap.matrices[0].rows)}
        present = {client: cell for client, cell in cells.items() if cell is not None}
        assert tuple(sorted(present)) == record.clients
        assert np.mean(list(present.values())) == pytest.approx(1.0)


def test_confusion_rows_sum_to_one(tmp_path: Path) -> None:
    heatmap = figures(content_of(write_run(tmp_path / "run")))["confusion"]
    sums = [sum(cell or 0.0 for cell in row) for row in heatmap.matrices[0].rows]
    assert sums == pytest.approx([1.0] * len(CLASSES))


@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({"method": "fedavg"}, {"momentum"}),
        ({"listed": False}, {"split", "weights", "weight-range"}),
        ({"tested": False}, {"classes", "shots", "confusion"}),
        ({}, {"concentration", "concentration-layers", "angles"}),
        ({"finished": False}, {"confusion"}),
    ],
)
def test_what_a_run_does_not_have_is_not_drawn(
    options: dict[str, object], absent: set[str], tmp_path: Path
) -> None:
    drawn = set(figures(content_of(write_run(tmp_path / "run", **options))))  # type: ignore[arg-type]
    assert not drawn & absent
    assert {"accuracy", "loss", "seconds"} <= drawn


def test_diagnostics_are_drawn_when_measured(tmp_path: Path) -> None:
    drawn = figures(content_of(write_run(tmp_path / "run", diagnosed=True)))
    concentration = drawn["concentration"]
    assert [curve.right for curve in concentration.curves] == [False, True]
    assert list(curves(drawn["concentration-layers"])) == ["body.1", "body.3"]
    assert list(curves(drawn["angles"])) == ["rare classes", "all classes"]
    together = figures(content_of(write_comparison(tmp_path / "c", diagnosed=True)))
    assert {"concentration", "concentration-layers", "minority-angle"} <= set(together)


def test_one_evaluated_round_is_enough(tmp_path: Path) -> None:
    content = content_of(write_run(tmp_path / "run", rounds=1))
    assert curves(figures(content)["accuracy"])["test"][0] == [1.0]


def test_a_run_that_diverged_at_once_is_told_without_curves(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", rounds=1, diverged="the model has a NaN")
    content = content_of(path)
    assert [figure.key for figure in content.figures] == ["split"]
    assert "the model has a NaN" in content.warnings[0]


def test_warnings_name_what_is_unfinished_and_what_grows(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", finished=False)
    assert "not finished, 6 of 12 rounds" in content_of(path).warnings[0]
    grow(path)
    assert "1 or more in 6 of 6" in content_of(path).warnings[1]


def grow(path: Path) -> None:
    records = RunFolder(path).metrics()
    RunFolder(path).write_metrics(
        [replace(record, extra={"gain": 1.0 + 0.1 * i}) for i, record in enumerate(records)]
    )


def test_a_warning_is_given_once_for_all_seeds_with_its_cure(tmp_path: Path) -> None:
    out = write_comparison(tmp_path / "c", ("fedavg", "fedcm[momentum_norm=nominal]"), seeds=3)
    for seed in range(3):
        grow(out / "runs" / f"m1-seed{seed}")
    for seed in (0, 2):
        write_run(out / "runs" / f"m0-seed{seed}", "fedavg", seed, diverged=f"the model has a NaN in round {seed}")
    diverged, growing = content_of(out).warnings
    assert diverged.startswith("fedavg, seeds 0 and 2 of 3: diverged, the model has a NaN")
    assert "--lr" in diverged
    assert growing.startswith("fedcm[momentum_norm=nominal], all 3 seeds: the gain of the momentum")
    assert "method.momentum_norm=exact" in growing


def test_seeds_become_mean_and_standard_deviation(tmp_path: Path) -> None:
    content = content_of(write_comparison(tmp_path / "c", seeds=3))
    figure = figures(content)["test-accuracy"]
    for curve in figure.curves:
        runs = next(group for group in load_runs([tmp_path / "c"]) if group.label == curve.name).runs
        values = np.array([[record.test_accuracy for record in run.history] for run in runs], dtype=float)
        assert list(curve.y) == pytest.approx(values.mean(axis=0))
        assert curve.spread is not None
        assert list(curve.spread) == pytest.approx(values.std(axis=0, ddof=1))
    bars = figures(content)["classes"]
    assert [bar.name for bar in bars.bars] == content.methods


def test_a_curve_goes_on_with_the_runs_that_got_there(tmp_path: Path) -> None:
    short = write_run(tmp_path / "a", seed=0, diverged="the model has a NaN")
    full = write_run(tmp_path / "b", seed=1)
    figure = figures(content_of(short, full))["test-accuracy"]
    last = RunFolder(full).metrics()[-1]
    rounds, values = curves(figure)["fedwcm"]
    assert (rounds[-1], values[-1]) == (last.round, last.test_accuracy)


def test_the_table_knows_when_each_run_first_reached_any_accuracy(tmp_path: Path) -> None:
    table = content_of(write_comparison(tmp_path / "c")).table
    groups = load_runs([tmp_path / "c"])
    for target in (0.3, 0.5, table.target):
        for group, steps in zip(groups, table.milestones, strict=True):
            for run, own in zip(group.runs, steps, strict=True):
                first = next((r.round for r in run.history if r.test_accuracy >= target), None)
                assert next((number for number, accuracy in own if accuracy >= target), None) == first


def test_only_what_differs_is_told_apart(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "fedcm[alpha=0.2]", seed)
        write_run(tmp_path / f"b{seed}", "fedcm[alpha=0.3]", seed)
    content = content_of(tmp_path)
    assert content.methods == ["fedcm (method.alpha=0.2)", "fedcm (method.alpha=0.3)"]
    assert content.differences == {"method.alpha": ["0.2", "0.3"]}
    assert "method.alpha" not in content.options
    assert not {"run.seed", "run.name"} & content.options.keys()


def test_an_option_that_only_one_method_knows_is_no_difference(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedcm[alpha=0.2]")
    write_run(tmp_path / "b", "fedprox[mu=0.1]")
    write_run(tmp_path / "c", "fedprox[mu=0.1]", local__lr=0.5)
    assert list(content_of(tmp_path).differences) == ["local.lr", "method.name"]


def test_what_an_older_version_did_not_write_is_no_difference(tmp_path: Path) -> None:
    write_run(tmp_path / "new", seed=0)
    config = write_run(tmp_path / "old", seed=1) / "config.toml"
    kept = [line for line in config.read_text().splitlines() if not line.startswith(("select_by", "diagnostics"))]
    config.write_text("\n".join(kept))
    assert [len(group.runs) for group in load_runs([tmp_path])] == [2]


def test_a_recipe_is_called_by_its_name(tmp_path: Path) -> None:
    assert content_of(write_run(tmp_path / "run", "fedcm+focal")).title == "fedcm+focal on digits"


def test_the_same_folder_counts_once_and_in_the_order_of_the_comparison(tmp_path: Path) -> None:
    out = write_comparison(tmp_path / "c", ("fedwcm", "fedavg"), seeds=1)
    groups = load_runs([out, out / "runs" / "m0-seed0", out])
    assert [(group.label, len(group.runs)) for group in groups] == [("fedwcm", 1), ("fedavg", 1)]


def test_a_report_does_not_read_the_list_of_a_comparison_for_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large comparison would take quadratic time. It is read for the order of the runs, and for their labels."""
    read = Mock(wraps=ComparisonIndex.from_json)
    monkeypatch.setattr(ComparisonIndex, "from_json", read)
    content_of(write_comparison(tmp_path / "c"))
    assert read.call_count == 2


@pytest.mark.parametrize(
    ("missing", "message"),
    [("config.toml", r"no config\.toml"), ("metrics.jsonl", r"no metrics\.jsonl")],
)
def test_a_foreign_folder_is_named_with_what_it_lacks(missing: str, message: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / missing).unlink()
    with pytest.raises(FileNotFoundError, match=message) as caught:
        load_runs([path])
    assert str(path) in str(caught.value)


def test_a_folder_that_is_not_there_and_metrics_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load_runs([tmp_path / "nowhere"])
    path = write_run(tmp_path / "run")
    (path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1: the key 'round' is missing"):
        report_content(load_runs([path]), 10)


@pytest.mark.parametrize(("length", "limit"), [(1, 2), (5, 5), (1000, 7), (8, 7)])
def test_thinning_keeps_the_ends_and_the_limit(length: int, limit: int) -> None:
    kept = thin_curve(length, limit)
    assert (kept[0], kept[-1]) == (0, length - 1)
    assert len(kept) == len(set(kept)) == min(length, limit)
    assert kept == sorted(kept)


def test_of_very_many_clients_the_split_holds_every_so_many(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 5, size=(9_001, 3))
    folder = RunFolder(tmp_path)
    folder.write_partition(PartitionRecord.of(counts, ["a", "b", "c"]))
    split = folder.partition()
    assert split.totals == tuple(counts.sum(axis=0))
    assert split.clients == len(counts)
    assert np.array_equal(split.counts, counts[:: split.every])
    assert len(counts) / split.every <= 2_000


def test_an_unbalanced_test_set_is_said_with_the_mean_over_its_classes(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    assert not any("unbalanced" in note for note in content_of(path).notes)
    first, *others = RunFolder(path).summary().confusion or ()
    summary = amend_summary(path, confusion=(tuple(5 * n for n in first), *others))
    (words,) = [note for note in content_of(path).notes if "unbalanced" in note]
    assert f"{summary.balanced_accuracy:.3f}" in words


def test_encryption_is_said_with_what_it_cost(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", privacy__mode="he")
    (words,) = [fact for fact in content_of(path).facts if fact.startswith("Privacy")]
    assert words == "Privacy: the class counts were added up under homomorphic encryption."
    amend_summary(path, encryption={"clients": 6, "bytes_up": 600_000, "bytes_down": 1_200_000, "seconds": 0.25})
    write_run(tmp_path / "plain", "fedavg")
    (words,) = [fact for fact in content_of(path, tmp_path / "plain").facts if fact.startswith("Privacy")]
    assert words.startswith("Privacy of fedwcm: ")
    assert "6 clients sent 0.6 MB and received 1.2 MB, in 0.25 s" in words
    assert not any("Privacy" in fact for fact in content_of(tmp_path / "plain").facts)


def test_clients_are_called_by_their_names(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    folder = RunFolder(path)
    split = folder.partition()
    assert split is not None
    people = ("Anna", "Björn", "Chloé", "Dmitri", "Eve", "Faisal")
    folder.write_partition(replace(split, names=people))
    drawn = figures(content_of(path))
    divided, weighted = drawn["split"], drawn["weights"]
    assert divided.column_labels == list(people)
    assert set(weighted.row_labels) <= set(people)
    every_third = PartitionRecord.of(np.ones((9_001, 2), dtype=int), ["a", "b"], [f"n{i}" for i in range(9_001)])
    assert [every_third.client_name(i) for i in (0, 1, every_third.every)] == ["n0", "1", f"n{every_third.every}"]


def test_fine_tuned_clients_have_a_figure_a_number_and_a_column(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    before, after = {"Anna": 0.7, "Eve": 0.5}, {"Anna": 0.8, "Eve": 0.9}
    means = {"before": {"client_mean": 0.6}, "after": {"client_mean": 0.85}}
    clients: Any = {"client_accuracy_before": before, "client_accuracy": after}
    record = PersonalizationRecord(epochs=1, layers="head", lr=0.1, **means, **clients)
    RunFolder(path).personalized_file.write_text(json.dumps(record.to_json()))
    content = content_of(path)
    bars = figures(content)["fine-tuned"]
    assert [(bar.name, list(bar.values)) for bar in bars.bars] == [("before", [0.5, 0.7]), ("after", [0.9, 0.8])]
    assert list(bars.categories) == ["Eve", "Anna"]
    assert ("fine-tuned", "0.850") in [tile[:2] for tile in content.tiles]
    write_run(tmp_path / "other", "fedavg")
    means_of = {row.label: row.values["personalized"] for row in content_of(path, tmp_path / "other").table.rows}
    assert (means_of["fedwcm"].mean, means_of["fedavg"]) == (0.85, None)


def test_accuracy_on_all_training_data_and_of_clients_is_compared(tmp_path: Path) -> None:
    out = write_comparison(tmp_path / "c", ("fedavg", "fedwcm"))
    for path in (out / "runs").iterdir():
        folder = RunFolder(path)
        records = [
            replace(r, client_mean=0.01 * r.round, extra={"train_set_accuracy": 0.05 * r.round})
            for r in folder.metrics()
        ]
        folder.write_metrics(records)
        amend_summary(path, **vars(outcome_of(records)), client_accuracy={"Anna": 0.2, "Eve": 0.1})
    content = content_of(out)
    drawn = figures(content)
    assert curves(drawn["train-set-accuracy"])["fedavg"][1] == pytest.approx([0.05 * n for n in range(1, 13)])
    assert set(curves(drawn["client-mean"])) == {"fedavg", "fedwcm"}
    bars = drawn["client-accuracy"]
    assert (list(bars.categories), [bar.name for bar in bars.bars]) == (["Eve", "Anna"], ["fedavg", "fedwcm"])
    assert content.table.columns["train_set_accuracy"] == "training set"
    assert [row.values["train_set_accuracy"].mean for row in content.table.rows] == pytest.approx([0.6, 0.6])


def test_a_loss_out_of_control_is_a_warning(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", "fedavg")
    write_diverging_losses(path)
    (words,) = content_of(path).warnings
    assert "the test loss rises to 1.7×10³¹: out of control" in words
    assert "--lr" in words


def test_shares_of_classes_are_named_where_all_runs_have_the_same(tmp_path: Path) -> None:
    write_comparison(tmp_path, ("fedavg", "fedcm"), seeds=1)
    alike = class_bars(load_runs([tmp_path]))
    assert "%" in alike.categories[0]
    amend_summary(tmp_path / "runs" / "m1-seed0", train_counts=(5, 5, 5, 200))
    mixed = class_bars(load_runs([tmp_path]))
    assert mixed.categories == ["elk", "cat", "dog", "owl"]
