"""Trackers of a run: what they are told, and that their failures are their own."""

import json
import threading
import time
import warnings
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.records import PartitionRecord, Summary
from fedwcm.experiment.trackers import TRACKERS, TrackedRun, Tracker, read_or_make, scalars_of, tracking
from fedwcm.experiment.trackers.tracking import TrackerWarning, Tracking, views
from tests.experiment.test_checkpoint import Interrupted
from tests.records import round_record, timeless

SMALL: Any = {"dataset": "digits", "clients": 10, "participation": 0.5, "epochs": 1, "batch_size": 10, "rounds": 3}


class Diary(Tracker):
    """Keeps what it hears, and raises at the moment that it is told to."""

    name = "diary"
    heard: ClassVar[list[tuple[object, ...]]] = []
    fails_at: ClassVar[str] = ""
    hangs_at: ClassVar[str] = ""
    seconds: ClassVar[float] = 0.0

    def start(self, run: TrackedRun) -> None:
        self._hear("start", run.name, run.settings["method.name"], run.done)

    def log(self, number: int, scalars: Mapping[str, float]) -> None:
        self._hear("log", number, scalars["test_accuracy"])

    def finish(self, summary: Summary) -> None:
        self._hear("finish", summary.final_accuracy, summary.diverged)

    def close(self) -> None:
        self._hear("close")

    def _hear(self, what: str, *details: object) -> None:
        self.heard.append((what, *details))
        time.sleep(self.seconds)
        if what == self.hangs_at:
            threading.Event().wait()  # for ever
        if what == self.fails_at:
            raise OSError("no space left")


class Other(Diary):
    """A second one, with a diary of its own."""

    name = "other"
    heard: ClassVar[list[tuple[object, ...]]] = []
    fails_at = hangs_at = ""
    seconds = 0.0


@pytest.fixture(autouse=True)
def _diaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Diary, Other):
        monkeypatch.setitem(TRACKERS._classes, cls.name, cls)
        monkeypatch.setattr(cls, "heard", [])


def test_a_slow_tracker_hears_of_the_start_every_evaluated_round_and_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Diary, "seconds", 0.05)
    result = fedwcm.run("fedcm", out=tmp_path / "run", track="diary", eval_every=2, **SMALL)
    accuracies = [("log", record.round, record.test_accuracy) for record in result.history]
    assert [entry[1] for entry in accuracies] == [2, 3]
    end = ("finish", result.summary.final_accuracy, None)
    assert Diary.heard == [("start", "run", "fedcm", 0), *accuracies, end, ("close",)]


def test_a_stopped_run_is_closed_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    options: Any = {**SMALL, "out": tmp_path / "run", "settings": {"run.checkpoint_every": 1}}
    with pytest.raises(KeyboardInterrupt):
        fedwcm.run("fedavg", track=["diary"], progress=Interrupted(2), **options)
    assert [entry[0] for entry in Diary.heard] == ["start", "log", "log", "close"]
    fedwcm.run("fedavg", track=["diary", "other"], resume=True, **options)
    assert Diary.heard[4] == ("start", "run", "fedavg", 2)
    assert [entry[0] for entry in Other.heard] == ["start", "log", "finish", "close"]


def test_a_diverged_run_is_finished_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        fedwcm.run("fedavg", track="diary", out=tmp_path / "run", **{**SMALL, "rounds": 9, "lr": 1e18})
    kind, _, reason = Diary.heard[-2]
    assert kind == "finish"
    assert "NaN" in str(reason)
    assert Diary.heard[-1] == ("close",)


@pytest.fixture(scope="module")
def plain() -> fedwcm.Result:
    """A run without trackers."""
    return fedwcm.run("fedwcm", **SMALL)


@pytest.mark.parametrize("moment", ["start", "log", "finish", "close"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("fails_at", "failed and is switched off, the run continues: OSError: no space left"),
        ("hangs_at", "hangs: it has not answered for 0.2 s. It is switched off"),
    ],
)
def test_a_tracker_that_fails_or_hangs_is_switched_off_and_the_run_goes_on(
    fault: str, words: str, moment: str, plain: fedwcm.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Diary, fault, moment)
    monkeypatch.setattr(tracking, "PATIENCE", 0.2 if fault == "hangs_at" else 60.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fedwcm.run("fedwcm", out=tmp_path / "run", track="diary,other", report=False, **SMALL)
    (warning,) = [str(w.message) for w in caught if issubclass(w.category, TrackerWarning)]
    assert warning.startswith(f"the tracker 'diary' {words}")
    assert timeless(result.history) == timeless(plain.history)
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert sum(entry[0] == moment for entry in Diary.heard) <= 2  # closed once more if it failed in closing
    assert [entry[0] for entry in Other.heard] == ["start", "log", "log", "log", "finish", "close"]
    left = [thread for thread in threading.enumerate() if thread.name == "tracker other"]
    for thread in left:
        thread.join(5)
    assert not any(thread.is_alive() for thread in left)


def test_a_tracker_that_cannot_work_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {**SMALL, "dataset": "no-such-file.csv"}
    with pytest.raises(ValueError, match="Did you mean 'tensorboard'"):
        fedwcm.run("fedavg", track="tensorbord", out=tmp_path / "run", **options)
    with pytest.raises(ValueError, match="needs a folder"):
        fedwcm.run("fedavg", track="diary", **options)

    def nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(tracking, "find_spec", nothing)
    with pytest.raises(ImportError, match=r"'mlflow' needs mlflow: pip install 'fedwcm\[track\]'"):
        fedwcm.run("fedavg", track="mlflow", out=tmp_path / "run", **options)
    with pytest.raises(ImportError, match="'wandb' needs wandb"):
        fedwcm.compare(["fedavg"], [0], tmp_path / "c", track="wandb", jobs=2, **options)
    assert not list(tmp_path.iterdir())


def test_the_command_line_takes_several_and_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "--dataset", "digits", "--clients", "10", "--epochs", "1", "--rounds", "1", "--quiet"]
    assert main([*command, "--track", "diary,other", "--out", str(tmp_path / "run")]) == 0
    assert Diary.heard == Other.heard != []
    assert views(["diary", "tensorboard"], tmp_path) == {"tensorboard": f"tensorboard --logdir {tmp_path}"}
    assert main(["list", "trackers"]) == 0
    assert {"mlflow", "tensorboard", "wandb"} <= {line.split()[0] for line in capsys.readouterr().out.splitlines()}


def test_numbers_of_a_record_get_flat_names() -> None:
    record: dict[str, object] = {
        "few": 0.5,
        "many": None,
        "bytes_up": 7,
        "diverged": "no",
        "per_class_accuracy": [0.1, None, 0.3],
        "clients": [4, 9],
        "weights": [0.5, 0.5],
        "concentration_layers": {"body.1": 0.2, "body.3": None},
        "flag": True,
    }
    assert scalars_of(json.loads(json.dumps(record))) == {
        "few": 0.5,
        "bytes_up": 7.0,
        "per_class_accuracy/0": 0.1,
        "per_class_accuracy/2": 0.3,
        "concentration_layers/body.1": 0.2,
    }


def test_classes_are_tracked_by_their_names(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_partition(PartitionRecord.of(np.ones((2, 3), dtype=int), ("cat", "dog", "owl")))
    heard: dict[str, float] = {}
    trackers = Tracking(["diary"])
    trackers.start(tmp_path, {"method.name": "fedavg"}, 0)
    trackers._threads[0]._tracker.log = lambda _, scalars: heard.update(scalars)  # type: ignore[assignment, method-assign]
    trackers.log(round_record(1, test_accuracy=0.5, per_class_accuracy=[0.1, None, 0.3]))
    trackers.close()
    assert {key: value for key, value in heard.items() if "class" in key} == {
        "per_class_accuracy/cat": 0.1,
        "per_class_accuracy/owl": 0.3,
    }


def test_classes_of_the_same_name_are_told_by_their_numbers() -> None:
    numbers_by_name = scalars_of({"per_class_accuracy": [0.1, 0.2]}, ("cat", "cat"))
    assert numbers_by_name == {"per_class_accuracy/0": 0.1, "per_class_accuracy/1": 0.2}


def test_a_name_is_made_once_and_kept(tmp_path: Path) -> None:
    assert read_or_make(tmp_path / "a" / "id", lambda: "first") == ("first", True)
    assert read_or_make(tmp_path / "a" / "id", lambda: "second") == ("first", False)
