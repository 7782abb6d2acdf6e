"""`evaluate` and `predict`: which rows, which columns, which classes; and the normalizer."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedwcm
from fedwcm.cli import common, main
from fedwcm.data import load_dataset
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.run import Run

from .objects import SMALL, digits

NAMES = ("sit", "walk", "fall")
COLUMNS = ("a", "b", "c", "d")
OPTIONS: Any = {**SMALL, "clients": None, "rounds": 5}


def table(path: Path, rows: int, seed: int, columns: tuple[str, ...] = (*COLUMNS, "activity", "person")) -> Path:
    """Rows of three classes, told apart by four columns of very different scales."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, size=rows, p=[0.5, 0.3, 0.2])
    values = (np.eye(3, 4)[labels] * 3 + rng.normal(size=(rows, 4))) * [1.0, 100.0, 0.01, 10.0]
    cells = {name: [f"{value:.6f}" for value in values[:, i]] for i, name in enumerate(COLUMNS)}
    cells |= {"activity": [NAMES[label] for label in labels], "person": [f"p{i % 5}" for i in range(rows)]}
    cells["part"] = ["test" if i % 3 == 0 else "train" for i in range(rows)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(cells[name] for name in columns), strict=True))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table, with a seed and a test fraction that are not the defaults."""
    folder = tmp_path_factory.mktemp("activities")
    source = table(folder / "activities.csv", 400, 0)
    how: dict[str, Any] = {"label": "activity", "client": "person", "seed": 5, "test_fraction": 0.35}
    fedwcm.run("fedavg", dataset=source, out=folder / "run", **OPTIONS | how)
    return folder


def test_on_its_own_data_the_runs_own_test_rows_are_tested(trained: Path) -> None:
    source, last = trained / "activities.csv", RunFolder(trained / "run").metrics()[-1]
    (trained / "copy.csv").write_bytes(source.read_bytes())
    made = load_dataset(source, label="activity", client="person", seed=5, test_fraction=0.35)
    for own in (None, source, str(source), trained / "copy.csv", made):
        measured = fedwcm.evaluate(trained / "run", own)
        assert measured.rows == "run"
        assert measured.samples == pytest.approx(0.35 * 400, abs=3)
        assert measured.per_class_accuracy == last.per_class_accuracy
        assert measured.test_loss == pytest.approx(last.test_loss, rel=1e-5)


def test_own_arrays_are_recognised_by_their_content(tmp_path: Path) -> None:
    x, y = digits()
    result = fedwcm.run("fedavg", dataset=(x, y), out=tmp_path, seed=4, test_fraction=0.1, **SMALL)
    measured = fedwcm.evaluate(tmp_path, {"x": x, "y": y})
    assert measured.test_accuracy == result.summary.final_accuracy
    assert measured.rows == "run"
    assert fedwcm.evaluate(tmp_path, (x[:100], y[:100])).samples == 100


def test_own_data_that_has_changed_or_is_to_be_drawn_from_is_refused(trained: Path, tmp_path: Path) -> None:
    source = table(tmp_path / "growing.csv", 200, 1)
    how: dict[str, Any] = {"label": "activity", "client": "person"}
    fedwcm.run("fedavg", dataset=source, out=tmp_path / "run", **OPTIONS | how)
    table(source, 220, 1)
    with pytest.raises(ValueError, match="has changed since the run was trained on it"):
        fedwcm.evaluate(tmp_path / "run", source, **how)
    with pytest.raises(ValueError, match=r"test_fraction = 0\.2 is for other data"):
        fedwcm.evaluate(trained / "run", test_fraction=0.2)


@pytest.mark.parametrize(
    ("option", "value"),
    [("label", "a"), ("client", "a"), ("split", "a"), ("drop", ["a"]), ("encoding", "latin-1")],
)
def test_own_data_is_read_as_the_run_did(trained: Path, option: str, value: Any) -> None:
    for source in (None, trained / "activities.csv"):
        with pytest.raises(ValueError, match=f"{option} = .* is for other data"):
            fedwcm.evaluate(trained / "run", source, **{option: value})
    assert fedwcm.evaluate(trained / "run", label="activity", client="person").rows == "run"


def test_own_named_data_is_looked_for_where_it_is_now(tmp_path: Path) -> None:
    x, y = digits()
    then, now = tmp_path / "then", tmp_path / "now"
    then.mkdir()
    images = np.zeros((len(x), 28, 28), dtype=np.uint8)
    images[:, :8, :8] = np.reshape(x, (-1, 8, 8))
    np.savez(then / "fashion-mnist.npz", x_train=images, y_train=y, x_test=images[:50], y_test=y[:50])
    how: dict[str, Any] = {"dataset": "fashion-mnist", "data_dir": then, "imbalance": "none", "model": "mlp"}
    fedwcm.run("fedavg", out=tmp_path / "run", **SMALL | how | {"rounds": 1})
    then.rename(now)
    measured = fedwcm.evaluate(tmp_path / "run", data_dir=now)
    assert (measured.samples, measured.rows) == (50, "run")
    with pytest.raises((ValueError, OSError)):
        fedwcm.evaluate(tmp_path / "run", data_dir=tmp_path / "nowhere")


def test_classes_are_listed_from_head_to_tail_with_what_they_were_taken_for(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = fedwcm.evaluate(trained / "run")
    confusion = np.array(record.confusion)
    assert confusion.sum(axis=1).tolist() == list(record.test_counts)
    for c, interval in enumerate(record.per_class_interval):
        recall, precision = record.per_class_accuracy[c], record.per_class_precision[c]
        assert recall == pytest.approx(confusion[c, c] / confusion[c].sum())
        assert precision == pytest.approx(confusion[c, c] / confusion[:, c].sum())
        assert interval is not None
        assert interval[0] < recall < interval[1] or recall == 1.0
    weighted = np.dot([loss or 0.0 for loss in record.per_class_loss], record.test_counts) / record.samples
    assert weighted == pytest.approx(record.test_loss, rel=1e-5)
    assert main(["evaluate", str(trained / "run"), "--confusion"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("balanced accuracy") < shown.index(" accuracy  ", shown.index("balanced accuracy") + 20)
    table = shown[shown.index("95 % interval") :]
    assert table.index("sit") < table.index("walk") < table.index("fall")
    assert f"{record.per_class_accuracy[0]:.3f}" in table
    assert "taken for" in table
    assert record.trained_clients == 5
    assert "5 of the 5 clients tested here trained the model" in shown


def test_of_new_data_every_row_is_tested_and_the_command_says_how_many(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = table(tmp_path / "new.csv", 123, 2)
    assert fedwcm.evaluate(trained / "run", new).samples == 123
    assert main(["evaluate", str(trained / "run"), "--dataset", str(new), "--label", "activity"]) == 0
    shown = capsys.readouterr().out
    assert "tested on all 123 rows" in shown
    assert "5 of the 5 clients tested here trained the model" in shown
    assert fedwcm.evaluate(trained / "run", new, mix="client").client_accuracy is not None
    assert fedwcm.evaluate(trained / "run", new, drop=["person"]).trained_clients is None


def test_of_data_with_parts_the_test_part_is_tested_also_if_it_is_all_there_is(
    trained: Path, tmp_path: Path
) -> None:
    parts = table(tmp_path / "parts.csv", 90, 3, (*COLUMNS, "activity", "part"))
    measured = fedwcm.evaluate(trained / "run", parts, split="part")
    assert (measured.samples, measured.rows) == (30, "test")
    with pytest.raises(ValueError, match=r"test_fraction = 0\.5 is for data without a test part: parts has one"):
        fedwcm.evaluate(trained / "run", parts, split="part", test_fraction=0.5)
    lines = parts.read_text().splitlines()
    only = tmp_path / "only.csv"
    only.write_text("\n".join([lines[0], *(line for line in lines[1:] if line.endswith("test"))]) + "\n")
    assert fedwcm.evaluate(trained / "run", only, split="part").test_accuracy == measured.test_accuracy


def test_columns_are_matched_by_name(trained: Path, tmp_path: Path) -> None:
    straight = fedwcm.evaluate(trained / "run", table(tmp_path / "straight.csv", 200, 4))
    mixed = table(tmp_path / "mixed.csv", 200, 4, ("activity", "d", "b", "a", "c"))
    assert fedwcm.evaluate(trained / "run", mixed).per_class_accuracy == straight.per_class_accuracy
    assert float(straight.test_accuracy) > 0.8
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(mixed.read_text().replace("activity,d,b,a,c", "activity,dd,b,a,c"))
    with pytest.raises(ValueError, match=r"'d'.*'dd'"):
        fedwcm.evaluate(trained / "run", renamed)
    frame = pytest.importorskip("pandas").read_csv(mixed)
    assert fedwcm.evaluate(trained / "run", frame).per_class_accuracy == straight.per_class_accuracy


def test_predictions_are_those_of_the_model_with_or_without_labels(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = table(tmp_path / "labelled.csv", 50, 6)
    bare = table(tmp_path / "bare.csv", 50, 6, ("c", "a", "d", "b"))
    out = tmp_path / "new" / "predictions.csv"
    assert main(["predict", str(trained / "run"), str(bare), "--out", str(out)]) == 0
    assert f"50 predictions in {out}" in capsys.readouterr().out
    predictions = fedwcm.predict(trained / "run", labelled)
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0]) == ["sample", "predicted", "p(fall)", "p(sit)", "p(walk)"]
    assert [row["predicted"] for row in rows] == predictions.labels
    assert [row["sample"] for row in rows] == [str(number) for number in range(1, 51)]
    truth = [row["activity"] for row in csv.DictReader(labelled.open())]
    accuracy = np.mean([a == b for a, b in zip(predictions.labels, truth, strict=True)])
    assert accuracy == pytest.approx(fedwcm.evaluate(trained / "run", labelled).test_accuracy)
    model, normalizer = fedwcm.load_model(trained / "run"), fedwcm.load_normalizer(trained / "run")
    raw = np.array([[float(row[name]) for name in COLUMNS] for row in csv.DictReader(labelled.open())], np.float32)
    with torch.no_grad():
        expected = model(normalizer(raw)).softmax(dim=1).numpy()
    assert np.allclose(predictions.probabilities, expected, atol=1e-6)
    assert np.allclose(fedwcm.predict(trained / "run", raw).probabilities, expected, atol=1e-6)
    assert fedwcm.predict(trained / "run", raw.tolist()).labels == predictions.labels
    assert fedwcm.predict(trained / "run", (torch.from_numpy(raw), truth)).labels == predictions.labels


def test_a_label_or_client_of_another_name_is_no_input(trained: Path, tmp_path: Path) -> None:
    known = table(tmp_path / "known.csv", 30, 6)
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(known.read_text().replace("activity,person", "what,who"))
    with pytest.raises(ValueError, match="'what'"):
        fedwcm.predict(trained / "run", renamed)
    expected = fedwcm.predict(trained / "run", known).labels
    assert fedwcm.predict(trained / "run", renamed, label="what", client="who").labels == expected
    measured = fedwcm.evaluate(trained / "run", renamed, label="what", client="who")
    assert measured.test_accuracy == fedwcm.evaluate(trained / "run", known).test_accuracy


def test_an_id_column_is_carried_into_the_predictions(trained: Path, tmp_path: Path) -> None:
    lines = table(tmp_path / "new.csv", 20, 8, COLUMNS).read_text().splitlines()
    named = [f"{lines[0]},case", *(f"{line},007-{i}" for i, line in enumerate(lines[1:]))]
    (tmp_path / "named.csv").write_text("\n".join(named) + "\n")
    out = tmp_path / "predictions.csv"
    arguments = [str(trained / "run"), str(tmp_path / "named.csv"), "--out", str(out)]
    assert main(["predict", *arguments]) == 2
    assert main(["predict", *arguments, "--id", "case"]) == 0
    rows = list(csv.DictReader(out.open()))
    assert [row["case"] for row in rows] == [f"007-{i}" for i in range(20)]
    assert [row["predicted"] for row in rows] == fedwcm.predict(trained / "run", tmp_path / "new.csv").labels


def test_predictions_of_images_go_by_their_files(tmp_path: Path) -> None:
    x, y = digits()
    keep = y < 3
    for number, (image, label) in enumerate(zip(x[keep], y[keep], strict=True)):
        path = tmp_path / "images" / str(label) / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image.reshape(8, 8) * 15).astype(np.uint8)).save(path)
    result = fedwcm.run("fedavg", dataset=tmp_path / "images", out=tmp_path / "run", **SMALL)
    predictions = fedwcm.predict(tmp_path / "run", tmp_path / "images")
    assert len(predictions.ids) == keep.sum()
    right = [
        Path(name).parent.name == label for name, label in zip(predictions.ids, predictions.labels, strict=True)
    ]
    assert np.mean(right) == pytest.approx(result.summary.final_accuracy, abs=0.2)
    assert np.mean(right) > 0.6


def test_features_that_are_not_finite_are_refused_as_in_training(tmp_path: Path) -> None:
    x, y = digits()
    fedwcm.run("fedavg", dataset=(x, y), out=tmp_path / "run", **SMALL | {"rounds": 1})
    for value in (np.nan, np.inf, -np.inf):
        x = x[:20].copy()
        x[13, 5] = value
        np.savez(tmp_path / "new.npz", x=x, y=y[:20])
        np.savez(tmp_path / "parts.npz", x_train=x[:10], y_train=y[:10], x_test=x[10:], y_test=y[10:20])
        for source in ((x, y[:20]), x, tmp_path / "new.npz"):
            with pytest.raises(ValueError, match=r"x\[13, 5\] is -?(nan|inf): every feature must be a finite"):
                fedwcm.predict(tmp_path / "run", source)
        with pytest.raises(ValueError, match=r"x\[13, 5\] is"):
            fedwcm.evaluate(tmp_path / "run", (x, y[:20]))
        with pytest.raises(ValueError, match=r"x_test\[3, 5\] is"):
            fedwcm.predict(tmp_path / "run", tmp_path / "parts.npz")


def test_the_model_takes_what_the_normalizer_returns(tmp_path: Path) -> None:
    fedwcm.run("fedavg", dataset="digits", out=tmp_path, **SMALL)
    normalizer = fedwcm.load_normalizer(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, size=(3, 8, 8, 1)).astype(np.uint8)
    tensor = torch.from_numpy(images)
    expected = normalizer(images)
    assert (expected.shape, expected.dtype) == ((3, 1, 8, 8), torch.float32)
    for raw in (tensor, tensor.permute(0, 3, 1, 2), tensor[..., 0], images.tolist()):
        assert torch.equal(normalizer(raw), expected)
    with pytest.raises(ValueError, match=r"inputs of shape \(3, 5, 5, 1\).*\(1, 8, 8\)"):
        normalizer(np.zeros((3, 5, 5, 1)))
    with torch.no_grad():
        assert fedwcm.load_model(tmp_path)(normalizer(images)).shape == (3, 10)


def test_rows_without_a_label_separators_and_other_units_of_new_data(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = table(tmp_path / "new.csv", 60, 3).read_text().replace(",", "!").splitlines()
    lines[1] = lines[1].replace("sit", "").replace("walk", "").replace("fall", "")
    (tmp_path / "new.csv").write_text("\n".join(lines))
    words = ["evaluate", str(trained / "run"), "--dataset", str(tmp_path / "new.csv"), "--delimiter", "!"]
    assert main(words) == 2
    assert main([*words, "--unlabelled", "skip"]) == 0
    shown = capsys.readouterr()
    assert "row 1: the value is missing; pass --unlabelled skip" in shown.err
    assert "1 of 60 rows have no label" in shown.err
    assert "tested on all 59 rows" in shown.out
    inputs = np.loadtxt(tmp_path / "new.csv", delimiter="!", skiprows=1, usecols=range(4)) * [1, 1e5, 1, 1]
    with pytest.warns(UserWarning, match="column 'b' has a value"):
        fedwcm.predict(trained / "run", inputs)


def test_a_result_is_taken_in_place_of_its_folder(trained: Path) -> None:
    saved = fedwcm.open_run(trained / "run")
    assert isinstance(saved, fedwcm.Result)
    assert fedwcm.evaluate(saved) == fedwcm.evaluate(trained / "run")
    with pytest.raises(ValueError, match="this run is saved nowhere"):
        fedwcm.evaluate(fedwcm.Result(Run(None, config=saved.config, history=[], summary=None)))


def test_a_narrow_terminal_shows_names_and_bars_of_the_tested_classes(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heading, *rows = table(tmp_path / "new.csv", 60, 2).read_text().splitlines()
    (tmp_path / "falls.csv").write_text("\n".join([heading, *(row for row in rows if "fall" in row)]))
    monkeypatch.setattr(common, "UNLIMITED", 60)
    assert main(["evaluate", str(trained / "run"), "--dataset", str(tmp_path / "falls.csv")]) == 0
    (narrow,) = [line for line in capsys.readouterr().out.splitlines() if "█" in line]
    assert narrow.split()[0] == "fall"
    assert "…" not in narrow
