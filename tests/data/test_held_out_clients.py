"""Whole clients are held out for testing: nobody who is tested is trained on, and evaluation finds them again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedwcm
from fedwcm.cli import main
from fedwcm.data import load_dataset
from fedwcm.experiment.folder import RunFolder

PEOPLE, ROWS = 10, 12
WHO = np.repeat(np.arange(PEOPLE), ROWS)
NAMES = np.array([f"p{who:02d}" for who in WHO])
LABELS = np.tile(np.arange(3), PEOPLE * ROWS // 3)


def features() -> np.ndarray:
    """The second column tells whose a row is; the first has something to learn."""
    noise = np.random.default_rng(0).normal(size=len(WHO))
    return np.stack([LABELS + 0.3 * noise, WHO], axis=1).astype(np.float32)


def frame() -> pd.DataFrame:
    x = features()
    return pd.DataFrame({"value": x[:, 0], "who": x[:, 1], "activity": LABELS, "person": NAMES})


def table(folder: Path) -> dict[str, Any]:
    frame().to_csv(folder / "people.csv", index=False)
    return {"source": folder / "people.csv", "label": "activity", "client": "person"}


def archive(folder: Path) -> dict[str, Any]:
    np.savez(folder / "people.npz", x=features(), y=LABELS, client=NAMES)
    return {"source": folder / "people.npz"}


def images(folder: Path) -> dict[str, Any]:
    for i, (who, name, label) in enumerate(zip(WHO, NAMES, LABELS, strict=True)):
        path = folder / "images" / name / f"class{label}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), int(who)).save(path)
    return {"source": folder / "images", "client": "folder"}


def persons(_: Path) -> dict[str, Any]:
    return {"source": {name: (features()[name == NAMES], LABELS[name == NAMES]) for name in sorted(set(NAMES))}}


SOURCES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "table": table,
    "npz": archive,
    "images": images,
    "a pair per client": persons,
    "arrays and clients": lambda _: {"source": (features(), LABELS), "client_ids": NAMES},
    "DataFrame": lambda _: {"source": frame(), "label": "activity", "client": "person"},
    "DataFrame and clients": lambda _: {
        "source": frame().drop(columns="person"),
        "label": "activity",
        "client_ids": NAMES,
    },
}


def people_in(x: np.ndarray) -> set[int]:
    return set(x.reshape(len(x), -1)[:, -1].astype(int))


@pytest.mark.parametrize("source", SOURCES)
def test_nobody_is_both_trained_on_and_tested(source: str, tmp_path: Path) -> None:
    options = SOURCES[source](tmp_path)
    named = load_dataset(test_clients=["p03", "p07"], **options)
    assert people_in(named.x_test) == {3, 7}
    assert people_in(named.x_train) == set(range(PEOPLE)) - {3, 7}
    assert named.client_names == tuple(f"p{who:02d}" for who in range(PEOPLE) if who not in (3, 7))
    assert len(named.x_test) == 2 * ROWS
    assert named.test_clients is not None
    assert [int(name[1:]) for name in named.test_clients] == [*named.x_test.reshape(2 * ROWS, -1)[:, -1]]
    drawn = [load_dataset(test_clients=0.3, seed=seed, **options) for seed in (0, 0, 1)]
    assert [len(people_in(each.x_test)) for each in drawn] == [3, 3, 3]
    assert not people_in(drawn[0].x_test) & people_in(drawn[0].x_train)
    assert people_in(drawn[0].x_test) == people_in(drawn[1].x_test) != people_in(drawn[2].x_test)


@pytest.mark.parametrize(("share", "clients"), [(0.01, 1), (0.24, 2), (0.25, 3), (0.26, 3), (0.3, 3), (0.99, 9)])
def test_a_share_of_the_clients_is_the_nearest_number_but_not_none_nor_all(share: float, clients: int) -> None:
    data = load_dataset((features(), LABELS), client_ids=NAMES, test_clients=share)
    assert len(people_in(data.x_test)) == clients


def with_validation() -> pd.DataFrame:
    """Every fourth row of everybody is for validation."""
    return frame().assign(part=np.where(np.arange(len(WHO)) % 4, "train", "val"))


@pytest.mark.parametrize("chosen", [["p03", "p07"], 0.3])
def test_the_validation_rows_of_those_who_are_tested_are_tested_too(chosen: Any) -> None:
    data = load_dataset(with_validation(), label="activity", client="person", split="part", test_clients=chosen)
    tested = people_in(data.x_test)
    assert data.x_val is not None
    assert data.test_clients is not None
    assert len(data.x_test) == len(tested) * ROWS
    assert tested == {int(name[1:]) for name in data.test_clients}
    assert people_in(data.x_val) == people_in(data.x_train) == set(range(PEOPLE)) - tested
    assert len(data.x_val) == (PEOPLE - len(tested)) * ROWS // 4


def test_arrays_may_say_whose_the_validation_rows_are() -> None:
    x = features()
    arrays = {"x_train": x, "y_train": LABELS, "client_train": NAMES}
    data = load_dataset({**arrays, "x_val": x, "y_val": LABELS, "client_val": NAMES}, test_clients=["p03"])
    assert data.x_val is not None
    assert people_in(data.x_val) == set(range(PEOPLE)) - {3}
    assert len(data.x_test) == 2 * ROWS


def test_a_warning_says_that_nobody_knows_whose_the_validation_rows_are() -> None:
    x = features()
    arrays = {"x_train": x, "y_train": LABELS, "x_val": x[:30], "y_val": LABELS[:30]}
    with pytest.warns(UserWarning, match="the clients of its validation rows are not known"):
        data = load_dataset(arrays, client_ids=NAMES, test_clients=["p03"])
    assert data.y_val is not None
    assert len(data.y_val) == 30


OPTIONS: dict[str, Any] = {"rounds": 3, "epochs": 1, "participation": 0.5, "settings": {"model.hidden": [4]}}


def test_evaluation_tests_the_very_clients_that_the_run_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(table(tmp_path)["source"])
    given = ["run", "--method", "fedavg", "--dataset", source, "--label", "activity", "--client", "person"]
    given += ["--test-clients", "0.3", "--seed", "5", "--rounds", "3", "--no-report", "--out"]
    assert main([*given, str(tmp_path / "run")]) == 0
    for dataset in (None, source):
        measured = fedwcm.evaluate(tmp_path / "run", dataset)
        assert (measured.samples, measured.rows) == (3 * ROWS, "run")
        assert measured.test_accuracy == RunFolder(tmp_path / "run").summary().final_accuracy
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert f"the {3 * ROWS} rows that the run held out" in capsys.readouterr().out


def test_evaluation_needs_clients_that_only_the_call_knew(tmp_path: Path) -> None:
    data = (features(), LABELS)
    result = fedwcm.run(
        "fedavg", dataset=data, clients=NAMES, test_clients=["p01"], out=tmp_path, report=False, **OPTIONS
    )
    with pytest.raises(ValueError, match="pass them again"):
        fedwcm.evaluate(tmp_path, data)
    measured = fedwcm.evaluate(tmp_path, data, clients=NAMES)
    assert (measured.samples, measured.rows) == (ROWS, "run")
    assert measured.test_accuracy == result.summary.final_accuracy
    other = fedwcm.evaluate(tmp_path, (features()[:30], LABELS[:30]), clients=NAMES[:30])
    assert (other.samples, other.rows) == (30, "all")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"test_clients": 0.3}, "needs data with clients of its own, which arrays does not have"),
        ({"test_clients": 1.5, "client_ids": NAMES}, "test_clients = 1.5 is not allowed"),
        ({"test_clients": ["p03", "x9"], "client_ids": NAMES}, "no client is called 'x9'; they are 'p00'"),
        ({"test_clients": sorted(set(NAMES)), "client_ids": NAMES}, "leaves no client to train"),
    ],
)
def test_what_cannot_be_held_out_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        load_dataset((features(), LABELS), **options)


def test_clients_of_another_number_are_no_damaged_file(tmp_path: Path) -> None:
    options = table(tmp_path)
    del options["client"]
    with pytest.raises(ValueError, match="train part: 120 samples but 130 clients") as refused:
        load_dataset(**options, drop=["person"], client_ids=np.resize(NAMES, 130), test_clients=0.2)
    assert "damaged" not in str(refused.value)


def test_data_with_a_test_part_and_data_without_clients_are_refused_by_name() -> None:
    x = features()
    with pytest.raises(ValueError, match="for data without a test part: arrays has one"):
        load_dataset((x, LABELS, x, LABELS), test_clients=0.2, client_ids=NAMES)
    with pytest.raises(ValueError, match="for data without a test part: digits has one"):
        fedwcm.partition(dataset="digits", test_clients=0.2)
    with pytest.raises(ValueError, match=r"data\.test_clients = 0\.2 is not allowed: it must be none for synth"):
        fedwcm.run("fedavg", dataset="synthetic", test_clients=0.2, rounds=1)


def held_out(tmp_path: Path, **options: Any) -> tuple[set[str], set[str], set[str]]:
    """Who trains, who validates and who is tested in a partition of the table."""
    where = table(tmp_path)
    data = fedwcm.partition(dataset=where["source"], label="activity", client="person", **options)
    names = np.array(data.dataset.client_names)[data.dataset.client_ids]
    tested = set() if data.dataset.test_clients is None else set(data.dataset.test_clients.tolist())
    return set(names[data.train_rows]), set(names[data.val_rows]), tested


@pytest.mark.filterwarnings("error:.*dropped as client")
def test_whole_clients_are_held_out_for_validation_also_where_they_are_for_testing(tmp_path: Path) -> None:
    everybody = set(NAMES)
    choices: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({"val_clients": 0.3, "test_clients": 0.2}, (6, 2, 2)),
        ({"val_fraction": 0.3, "test_clients": 0.2}, (6, 2, 2)),
        ({"val_clients": ["p03", "p05"], "test_clients": ["p00"]}, (7, 2, 1)),
    ]
    for options, sizes in choices:
        groups = held_out(tmp_path, **options)
        assert tuple(map(len, groups)) == sizes
        assert set.union(*groups) == everybody
    assert groups[1] == {"p03", "p05"}
    train, validated, tested = held_out(tmp_path, val_clients=0.3)
    assert not train & validated
    assert tested == everybody  # rows of each class are tested
    train, validated, _ = held_out(tmp_path, val_fraction=0.3)
    assert train == validated == everybody


def test_validation_takes_no_class_away_and_says_who_is_not_there() -> None:
    rare = frame()
    rare.loc[rare.person == "p07", "activity"] = 9
    options: Any = {"label": "activity", "client": "person"}
    for seed in range(5):
        data = fedwcm.partition(dataset=rare, val_clients=0.4, test_fraction=0.1, seed=seed, **options)
        assert 3 in data.dataset.y_train[data.train_rows]
    refusals: list[tuple[Any, str]] = [
        (["p07"], "only ones with the class '9'"),
        (["nobody"], "val_clients: no client is called 'nobody'"),
        (1.5, "a share of the clients above 0"),
    ]
    for chosen, reason in refusals:
        with pytest.raises(ValueError, match=reason):
            fedwcm.partition(dataset=rare, val_clients=chosen, **options)
    with pytest.raises(ValueError, match=r"val_clients.*none with val_fraction"):
        fedwcm.partition(dataset=rare, val_clients=0.2, val_fraction=0.2, **options)
    with pytest.raises(ValueError, match=r"needs data with clients of its own"):
        fedwcm.partition(dataset="digits", val_clients=0.2)


def test_a_round_is_selected_on_new_people_and_operating_points_are_chosen_on_them(tmp_path: Path) -> None:
    where = table(tmp_path)
    options: Any = {"label": "activity", "client": "person", "rounds": 3, "epochs": 1, "participation": 1.0}
    run = fedwcm.run(
        "fedavg", dataset=where["source"], val_clients=0.2, test_clients=0.2, out=tmp_path / "run", **options
    )
    assert run.summary.selected_round is not None
    assert run.summary.val_accuracy is not None
    right = run.summary.val_accuracy * 2 * ROWS  # rows of two people
    assert right == pytest.approx(round(right), abs=1e-6)
    assert set(fedwcm.choose_operating_point(tmp_path / "run", "balanced")) == {"0", "1", "2"}
