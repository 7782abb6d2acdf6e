"""Records: what is written is what is read, and what cannot be read is named."""

import json
from pathlib import Path

import pytest

import fedwcm
from fedwcm.experiment.folder import ComparisonFolder, RunFolder, find_runs
from fedwcm.experiment.records import ComparisonIndex, Outcome, RoundRecord, outcome_of
from fedwcm.utils.json_record import RecordError, finite
from tests.records import round_record, summary

TESTED = {"test_accuracy": 0.5, "test_loss": 1.0, "balanced_accuracy": 0.5, "macro_f1": 0.4, "many": 0.5}


def test_a_record_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    records = [
        round_record(1, clients=[3, 1], weights=[0.5, 0.5], left_out={"4": "late"}, alpha=0.1),
        round_record(2, **TESTED, per_class_accuracy=[0.5, None]),
    ]
    folder.write_metrics(records[:1])
    folder.append_metrics(records[1])
    assert folder.metrics() == records
    folder.write_summary(summary(confusion=[[1, 0], [2, 3]]))
    assert folder.summary() == summary(confusion=[[1, 0], [2, 3]])


def test_metrics_that_belong_together_are_written_together() -> None:
    tested = round_record(1, **TESTED).to_json()
    assert "few" not in tested
    assert tested["per_class_accuracy"] is None
    assert "val_accuracy" not in tested
    untested = round_record(1, alpha=0.1).to_json()
    assert set(untested) == {"round", "seconds", "participants", "bytes_down", "bytes_up", "alpha"}
    reached = outcome_of([]).to_json()
    assert reached == {"rounds": 0, "final_accuracy": None, "best_accuracy": None}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seconds", ..., "the key 'seconds' is missing"),
        ("round", "one", "round = 'one' is not allowed: it must be a whole number"),
        ("round", True, "round = True is not allowed"),
        ("few", "0.5", "few = '0.5' is not allowed: it must be a number"),
        ("clients", 3, "clients = 3 is not allowed: it must be a list, each a whole number"),
        ("clients", [1, 2.5], r"clients\[1\] = 2.5 is not allowed"),
        ("per_class_accuracy", [0.5, "x"], r"per_class_accuracy\[1\] = 'x' is not allowed"),
    ],
)
def test_a_record_that_cannot_be_read_is_named_with_its_file_line_and_key(
    key: str, value: object, message: str, tmp_path: Path
) -> None:
    good = round_record(1).to_json()
    bad = {name: item for name, item in {**good, key: value}.items() if item is not ...}
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    with pytest.raises(RecordError, match=rf"metrics\.jsonl, line 2: {message}"):
        folder.metrics()


def test_a_line_that_a_crash_cut_short_is_left_out_and_damage_elsewhere_is_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    line = json.dumps(round_record(1).to_json())
    folder.metrics_file.write_text(f"{line}\n{line[:20]}")
    assert folder.metrics() == [round_record(1)]
    folder.metrics_file.write_text(f"{line[:20]}\n{line}\n")
    with pytest.raises(RecordError, match=r"line 1: this is not JSON"):
        folder.metrics()


def test_numbers_are_found_among_fields_and_extra_keys() -> None:
    record = round_record(1, few=0.5, alpha=0.1, concentration_layers={"body.1": 0.2})
    assert [record.number(key) for key in ("few", "alpha")] == [0.5, 0.1]
    assert [record.number(key) for key in ("many", "nowhere", "clients")] == [None] * 3
    assert record.number("concentration_layers", "body.1") == 0.2
    assert record.number("concentration_layers", "body.9") is None


def test_what_json_cannot_hold_becomes_null() -> None:
    values = finite({"a": float("nan"), "b": float("inf"), "c": 1.0, "d": "text"})
    nested = finite({"list": [float("nan"), 0.5], "object": {"3": {"loss": float("inf")}}})
    assert nested == {"list": [None, 0.5], "object": {"3": {"loss": None}}}
    assert values == {"a": None, "b": None, "c": 1.0, "d": "text"}


def test_the_outcome_is_that_of_the_round_selected_on_validation_data() -> None:
    def evaluated(number: int, test: float, val: float) -> RoundRecord:
        return round_record(number, test_accuracy=test, val_accuracy=val, val_balanced_accuracy=val, few=test / 2)

    history = [evaluated(1, 0.2, 0.3), evaluated(2, 0.6, 0.9), evaluated(3, 0.4, 0.9)]
    reached = outcome_of(history)
    assert isinstance(reached, Outcome)
    assert (reached.rounds, reached.final_accuracy, reached.best_accuracy, reached.few) == (3, 0.4, 0.6, 0.3)
    assert reached.last_mean_accuracy == pytest.approx(0.4)
    assert (reached.selected_round, reached.selected_accuracy, reached.val_accuracy) == (2, 0.6, 0.9)
    assert reached.accuracy == 0.6
    assert outcome_of([*history[:1], round_record(2, test_accuracy=0.5)]).accuracy == 0.2


def test_runs_are_found_in_a_folder_in_comparisons_and_below(tmp_path: Path) -> None:
    comparison = ComparisonFolder(tmp_path / "b")
    planned = [comparison.run_path("fedcm[alpha=0.2]", seed) for seed in (0, 1)]
    comparison.write_index(ComparisonIndex(labels={path.name: "fedcm[alpha=0.2]" for path in planned}))
    for folder in (tmp_path / "a", tmp_path / "a" / "nested", tmp_path / "c" / "d", planned[0]):
        folder.mkdir(parents=True)
        RunFolder(folder).config_file.write_text("")
    assert find_runs(tmp_path / "a") == {tmp_path / "a": "a"}
    assert find_runs(tmp_path) == {
        tmp_path / "a": "a",
        planned[0]: "fedcm[alpha=0.2], seed 0",
        planned[1]: "fedcm[alpha=0.2], seed 1",
        tmp_path / "c" / "d": "c/d",
    }


def test_a_half_written_index_is_an_error_unless_it_is_tolerated(tmp_path: Path) -> None:
    comparison = ComparisonFolder(tmp_path)
    comparison.index_file.write_text('{"labels": {"a-seed0"')
    with pytest.raises(RecordError, match=r"comparison\.json: this is not JSON"):
        find_runs(tmp_path)
    assert find_runs(tmp_path, tolerant=True) == {}


def test_a_summary_is_titled_by_its_name_and_by_what_that_resolved_to() -> None:
    named = summary(name="balancefl", loss="balancefl", sampler="balanced")
    assert named.title == "balancefl (fedwcm, loss balancefl, sampler balanced)"
    assert summary(name="fedwcm[alpha=0.2]").title == "fedwcm[alpha=0.2]"


def test_a_folder_with_the_names_of_version_0_1_is_opened_and_resumed(tmp_path: Path) -> None:
    options = {"dataset": "digits", "clients": 5, "epochs": 1, "out": tmp_path / "run"}
    first = fedwcm.run("fedavg-cheng", rounds=1, **options)  # type: ignore[arg-type]
    folder = RunFolder(tmp_path / "run")
    partition = folder.partition()
    folder.partition_file.rename(folder.path / "split.json")
    text = folder.config_file.read_text()
    folder.config_file.write_text(text.replace('name = "fedavg-cheng"', 'name = "fedavg-m"', 1))
    assert RunFolder(folder.path).partition() == partition
    opened = fedwcm.open_run(folder.path)
    assert isinstance(opened, fedwcm.Result)
    assert opened.config == first.config
    longer = fedwcm.run(resume=True, rounds=2, **options)  # type: ignore[arg-type]
    assert longer.history[:1] == first.history
