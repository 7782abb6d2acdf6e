"""Results in Python: what they print, show in a notebook, and give as data frames and plots; past ones as well."""

import builtins
import csv
import io
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import fedwcm
from fedwcm.experiment.folder import ComparisonFolder, RunFolder
from fedwcm.experiment.records import ComparisonIndex
from fedwcm.experiment.run import Run
from tests.api.objects import SMALL
from tests.reports.folders import write_comparison, write_run

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> fedwcm.Comparison:
    out = write_comparison(tmp_path_factory.mktemp("compared"))
    found = fedwcm.open_run(out)
    assert isinstance(found, fedwcm.Comparison)
    return found


def opened_run(path: Path, **options: object) -> fedwcm.Result:
    found = fedwcm.open_run(write_run(path, **options))  # type: ignore[arg-type]
    assert isinstance(found, fedwcm.Result)
    return found


def svg_in(page: str) -> ElementTree.Element:
    """The figure of a view, which is the last thing in it and well-formed."""
    return ElementTree.fromstring(page[page.index("<svg") :])


def test_a_run_prints_in_five_lines_the_same_after_it_is_opened_again(tmp_path: Path) -> None:
    result = fedwcm.run("fedwcm", dataset="digits", out=tmp_path / "run", report=False, **SMALL)
    lines = repr(result).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["method", "data", "rounds", "accuracy", "saved in"]
    message = dict(zip(("method", "data", "rounds", "accuracy", "saved in"), lines, strict=True))
    assert "fedwcm, seed 0" in message["method"]
    assert "digits" in message["data"]
    assert f"{sum(result.summary.train_counts):,} training samples of 10 classes" in message["data"]
    assert message["rounds"].split()[1:] == [str(SMALL["rounds"])]
    assert f"{result.summary.final_accuracy:.3f} after the last round" in message["accuracy"]
    assert str(tmp_path / "run") in message["saved in"]
    again = fedwcm.open_run(tmp_path / "run")
    assert isinstance(again, fedwcm.Result)
    assert repr(again) == repr(result)
    assert again.history == result.history
    for name, tensor in result.model.state_dict().items():
        assert again.model.state_dict()[name].equal(tensor)
    assert again.model is again.model


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({"finished": False}, "6 of 12, not finished"),
        ({"diverged": "the loss is NaN"}, "6 of 12, diverged: the loss is NaN"),
        ({"tested": False}, "12"),
    ],
)
def test_a_run_that_did_not_end_well_says_so(options: dict[str, object], rounds: str, tmp_path: Path) -> None:
    result = opened_run(tmp_path, **options)
    lines = repr(result).splitlines()
    assert len(lines) == 5
    assert lines[2] == f"rounds    {rounds}"
    assert ("not measured" in lines[3]) == ("tested" in options)
    assert result.outcome.rounds == len(result.history)
    if not result.finished:
        with pytest.raises(ValueError, match=r"not a finished run.*resume=True"):
            assert result.summary
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        assert result.model


def test_a_run_shows_a_table_and_its_curve(tmp_path: Path) -> None:
    result = opened_run(tmp_path / "a", rounds=12)
    page = result._repr_html_()
    svg = svg_in(page)
    (line,) = [path for path in svg.iter("{http://www.w3.org/2000/svg}path") if path.get("stroke-width")]
    assert str(line.get("d")).count("L") == len(result.history) - 1
    assert "<script" not in page
    untested = opened_run(tmp_path / "b", tested=False)._repr_html_()
    assert "train accuracy" in "".join(svg_in(untested).itertext())
    assert "<svg" not in opened_run(tmp_path / "c", rounds=1, finished=False)._repr_html_()
    assert "<circle" in opened_run(tmp_path / "d", rounds=1)._repr_html_()


def test_names_in_views_are_escaped(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "runs" / "a-seed0"))
    folder.write_config(replace(folder.config(), run=replace(folder.config().run, name=HOSTILE)))
    write_run(tmp_path / "runs" / "b-seed0")
    labels = {"a-seed0": HOSTILE, "b-seed0": "fedwcm"}
    ComparisonFolder(tmp_path).write_index(ComparisonIndex(labels=labels))
    found = fedwcm.open_run(tmp_path)
    assert isinstance(found, fedwcm.Comparison)
    (run, *_) = found.runs[HOSTILE]
    for page in (found._repr_html_(), run._repr_html_()):
        assert "<script" not in page
        assert "&lt;script&gt;alert(1)" in page


def test_a_comparison_prints_in_five_lines_and_shows_every_method(comparison: fedwcm.Comparison) -> None:
    lines = repr(comparison).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["compared", "runs", "accuracy", "verdict", "saved in"]
    assert "fedavg, fedcm, fedwcm on digits" in lines[0]
    assert lines[1].endswith("6 runs of 12 rounds each, 2 seeds")
    assert comparison.headline[0].replace("\n", " ") in lines[3]
    page = comparison._repr_html_()
    assert page.count("<tr>") == 1 + len(comparison.rows)
    text = list(svg_in(page).itertext())
    assert [name for name in text if name in comparison.runs] == list(comparison.runs)
    assert comparison.markdown.count("\n") == 1 + len(comparison.rows)


def test_a_history_is_a_data_frame(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: it comes with fedwcm[notebook]")
    result = opened_run(tmp_path / "run", diagnosed=True)
    frame = result.history_frame()
    assert list(frame.index) == [record.round for record in result.history]
    assert list(frame["test_accuracy"]) == [record.test_accuracy for record in result.history]
    last = result.history[-1].per_class_accuracy
    assert last is not None
    assert frame["per_class_accuracy/3"].iloc[-1] == last[3]
    assert fedwcm.Result(Run(None, config=result.config, history=[], summary=None)).history_frame().empty


def test_the_table_of_a_comparison_is_that_of_its_file(comparison: fedwcm.Comparison) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: it comes with fedwcm[notebook]")
    from fedwcm.reports.table_files import csv_table

    frame = comparison.table()
    rows = list(csv.DictReader(io.StringIO(csv_table(comparison.rows))))
    assert list(frame.columns) == list(rows[0])
    assert list(frame["method"]) == [row["method"] for row in rows]
    for part in ("mean", "std", "n"):
        assert list(frame[f"final_accuracy_{part}"]) == [float(row[f"final_accuracy_{part}"]) for row in rows]


def test_plots_have_a_line_per_method_and_know_their_metrics(
    comparison: fedwcm.Comparison,
) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib comes with fedwcm[notebook]")
    matplotlib.use("agg")
    from matplotlib import pyplot

    axes = comparison.plot("few")
    assert [line.get_label() for line in axes.lines] == list(comparison.runs)
    assert len(axes.collections) == len(comparison.runs)  # a band each
    run = comparison.runs["fedcm"][0]
    assert run.plot("per_class_accuracy/0", ax=axes, label="cat") is axes
    assert list(axes.lines[-1].get_ydata()) == [(record.per_class_accuracy or ())[0] for record in run.history]  # type: ignore[arg-type]
    pyplot.close("all")
    with pytest.raises(ValueError, match=r"unknown metric 'test_acuracy'\. Did you mean 'test_accuracy'"):
        run.plot("test_acuracy")
    with pytest.raises(ValueError, match="unknown metric"):
        comparison.plot("round")


def test_without_the_libraries_the_error_names_the_extra(
    comparison: fedwcm.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    run = comparison.runs["fedavg"][0]
    for call, package in ((comparison.table, "pandas"), (run.history_frame, "pandas"), (run.plot, "matplotlib")):
        with pytest.raises(ImportError, match=rf"needs {package}: pip install 'fedwcm\[notebook\]'"):
            call()


def test_a_folder_that_is_neither_is_refused_with_what_is_in_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        fedwcm.open_run(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"neither a run .* nor a comparison"):
        fedwcm.open_run(tmp_path)
    write_run(tmp_path / "below" / "one")
    with pytest.raises(FileNotFoundError, match=r"runs below it: .*below/one"):
        fedwcm.open_run(tmp_path)


def test_a_starred_import_leaves_pythons_open_alone() -> None:
    names: dict[str, object] = {}
    exec("from fedwcm import *", names)
    assert names.get("open", builtins.open) is builtins.open
    assert names["run"] is fedwcm.run
    assert "open_run" in dir(fedwcm)
