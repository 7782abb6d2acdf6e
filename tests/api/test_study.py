"""A study declared in a file: tuned with the same budget, run, resumed, and printed as in a paper."""

import csv
import re
from pathlib import Path

import pytest

import fedwcm
from fedwcm.api.study import StudyFile
from fedwcm.cli import main

STUDY = """
title = "Two tails"
seeds = [0, 1]
tables = ["balanced_accuracy", "metrics.auc"]
figures = ["few"]

[methods]
"FedAvg" = "fedavg"
"FedWCM & focal" = { method = "fedwcm", loss = "focal" }

[settings]
dataset = "digits"
rounds = 2
epochs = 1
metrics = ["auc"]
val_fraction = 0.2
partition.clients = 4
participation.fraction = 1.0

[data]
"IF 0.5" = { imbalance = 0.5 }
"IF 0.1" = { imbalance = 0.1 }

[tune]
seeds = [7]
options.local.lr = [1e-6, 0.1]
own."FedWCM & focal" = { lr = [0.1], "loss.gamma" = [0.0, 2.0] }
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> fedwcm.Study:
    file = tmp_path_factory.mktemp("study") / "tails.toml"
    file.write_text(STUDY)
    return fedwcm.study(file)


def test_every_method_runs_on_all_data_with_what_validation_data_has_chosen(done: fedwcm.Study) -> None:
    assert list(done.comparisons) == ["IF 0.5", "IF 0.1"]
    for data, comparison in done.comparisons.items():
        assert {name: len(runs) for name, runs in comparison.runs.items()} == {"FedAvg": 2, "FedWCM & focal": 2}
        config = comparison.runs["FedAvg"][0].config
        assert config.data.imbalance == float(data[3:])
        assert done.chosen[data]["FedAvg"] == {"local.lr": 0.1}, "with the other, it learns nothing"
        assert config.local.lr == 0.1


def test_tables_have_display_names_bold_best_and_full_numbers(done: fedwcm.Study) -> None:
    tex = (done.folder / "study.tex").read_text()
    assert r"Method & IF 0.5 & IF 0.1 \\" in tex
    assert re.search(r"FedWCM \\& focal & .*\$\\pm\$.* \\\\", tex)
    assert tex.count(r"\begin{tabular}{lcc}") == 2
    balanced = tex.partition("% auc")[0]
    assert balanced.count(r"\textbf{") == 2, "one in each column"
    rows = list(csv.DictReader((done.folder / "study.csv").open()))
    run = done.comparisons["IF 0.1"].runs["FedAvg"]
    mean = sum(float(result.summary.number("metrics", "auc") or 0) for result in run) / 2
    auc = {(row["method"], row["data"]): row for row in rows if row["measure"] == "metrics.auc"}
    assert float(auc["FedAvg", "IF 0.1"]["mean"]) == pytest.approx(mean)
    assert {path.name for path in done.folder.glob("few.*")} == {"few.pdf", "few.svg", "few.png"}
    svg = (done.folder / "few.svg").read_text()
    assert svg.count(">FedAvg<") == 1, "one legend for all panels"
    assert all(f">{data}<" in svg for data in done.comparisons)


def test_the_same_command_repeats_nothing(done: fedwcm.Study, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.folder.rglob("summary.json")}
    assert len(before) == 2 * (2 * 2 + 4)
    assert main(["study", str(done.folder.with_suffix(".toml")), "--no-report", "--quiet"]) == 0
    assert {path: path.stat().st_mtime_ns for path in done.folder.rglob("summary.json")} == before
    assert "# Two tails" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("seeds = [0, 1]", "seeds = []", "seeds is empty"),
        ('own."FedWCM & focal"', "own.FedProx", "tune.own = 'FedProx' is not allowed"),
        ("[0.0, 2.0]", "[0.0, 1.0, 2.0]", "at most 2, as of all"),
        ("[settings]", "[setings]", "setings"),
        ('"IF 0.1"', '"IF-0.5"', "names that differ as names of folders"),
        ("options.local.lr = [1e-6, 0.1]", "options.local.lr = 0.1", "must be a list of values"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, before: str, after: str, message: str) -> None:
    file = tmp_path / "study.toml"
    assert before in STUDY
    file.write_text(STUDY.replace(before, after, 1))
    with pytest.raises(ValueError, match=re.escape(message)):
        StudyFile.read(file)
