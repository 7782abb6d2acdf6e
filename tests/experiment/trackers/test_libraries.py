"""The real libraries, writing to a run's folder: what they hold afterwards is what the run recorded."""

import io
import json
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedwcm
from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.trackers.tensorboard import DARK, MOST_LABELLED, confusion_image, tag_of
from fedwcm.experiment.trackers.tracking import views
from tests.experiment.test_checkpoint import Interrupted

NAMES = [name for name in ("tensorboard", "mlflow", "wandb") if find_spec(name) is not None]
SMALL: Any = {"dataset": "digits", "clients": 10, "participation": 0.5, "epochs": 1, "batch_size": 10, "rounds": 5}
MISSING = "{} is not installed: it is part of the extra fedwcm[track]"


def stopped_and_resumed(out: Path, trackers: list[str]) -> fedwcm.Result:
    """Return a run that is stopped in round 4, which is logged before and once more after the run goes on."""
    options: Any = {**SMALL, "out": out, "track": trackers, "diagnostics": "concentration"}
    with pytest.raises(KeyboardInterrupt):
        fedwcm.run("fedwcm", progress=Interrupted(4), **options)
    return fedwcm.run("fedwcm", resume=True, **options)


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> fedwcm.Result:
    """A run with those of the quick trackers that are installed."""
    quick = [name for name in NAMES if name != "mlflow"]
    return stopped_and_resumed(tmp_path_factory.mktemp("tracked") / "run", quick)


@pytest.fixture(scope="module")
def in_mlflow(tmp_path_factory: pytest.TempPathFactory) -> fedwcm.Result:
    """A run with MLflow, which takes several seconds to make a database."""
    if "mlflow" not in NAMES:
        pytest.skip(MISSING.format("mlflow"))
    return stopped_and_resumed(tmp_path_factory.mktemp("in_mlflow") / "run", ["mlflow"])


def folder_of(result: fedwcm.Result, name: str) -> Path:
    if name not in NAMES:
        pytest.skip(MISSING.format(name))
    assert result.folder is not None
    return result.folder


def expected(result: fedwcm.Result, key: str) -> list[tuple[int, float]]:
    return [(record.round, pytest.approx(record.number(key), rel=1e-6)) for record in result.history]  # type: ignore[misc]


def test_tensorboard_holds_every_round_once_and_the_options(tracked: fedwcm.Result) -> None:
    folder = folder_of(tracked, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    grouped = {"test_accuracy": "accuracy", "few": "accuracy", "gain": "momentum", "test_loss": "loss"}
    grouped |= {"bytes_up": "costs", "weights_entropy": "clients", "concentration": "diagnostics"}
    for key, group in grouped.items():
        logged = [(event.step, event.value) for event in events.Scalars(f"{group}/{key}")]
        assert logged == expected(tracked, key)
    assert all("/" in tag for tag in events.Tags()["scalars"])
    last = tracked.history[-1].per_class_accuracy
    assert last is not None
    assert events.Scalars("per_class_accuracy/9")[-1].value == pytest.approx(last[9])
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert 'method.name = "fedwcm"' in texts["config/text_summary"]
    assert "final_accuracy" in texts["summary/text_summary"]


def test_tensorboard_has_the_options_as_hyperparameters_and_the_confusion_matrix(tracked: fedwcm.Result) -> None:
    folder = folder_of(tracked, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.api_pb2 import Status
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    stored = {
        tag: HParamsPluginData.FromString(content) for tag, content in events.PluginTagToContent("hparams").items()
    }
    options = stored[metadata.SESSION_START_INFO_TAG].session_start_info.hparams
    assert options["method.name"].string_value == "fedwcm"
    assert options["run.rounds"].number_value == 5
    metrics = {metric.name.tag for metric in stored[metadata.EXPERIMENT_TAG].experiment.metric_infos}
    assert {"accuracy/test_accuracy", "accuracy/few"} <= metrics <= set(events.Tags()["scalars"])
    ended = stored[metadata.SESSION_END_INFO_TAG].session_end_info
    assert ended.status == Status.Value("STATUS_SUCCESS")
    (image,) = events.Images("confusion matrix")
    pixels = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    assert tracked.summary.confusion is not None
    drawn = confusion_image(tracked.summary.confusion, tuple("0123456789"))
    assert np.array_equal(pixels, drawn)


def mlflow_client(folder: Path) -> tuple[Any, str]:
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder / 'mlruns' / 'mlflow.db'}"
    return MlflowClient(tracking_uri=uri), uri


@pytest.mark.slow
def test_mlflow_holds_one_run_with_options_rounds_and_summary(in_mlflow: fedwcm.Result) -> None:
    folder = folder_of(in_mlflow, "mlflow")
    client, uri = mlflow_client(folder)
    (experiment,) = client.search_experiments()  # no empty one beside it
    assert experiment.name == "fedwcm"
    (run,) = client.search_runs([experiment.experiment_id])
    (message,) = views(["mlflow"], folder).values()
    assert f"--backend-store-uri '{uri}'" in message
    assert f"#/experiments/{experiment.experiment_id}/runs/{run.info.run_id}/" in message
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["method.name"] == "fedwcm"
    assert run.data.params["run.rounds"] == "5"
    for key in ("test_accuracy", "concentration", "concentration_layers/body.1"):
        history = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, key)}
        assert sorted(history) == [1, 2, 3, 4, 5]
    assert history[5] == pytest.approx(in_mlflow.history[-1].extra["concentration_layers"]["body.1"])  # type: ignore[call-overload]
    assert run.data.metrics["summary/final_accuracy"] == pytest.approx(in_mlflow.summary.final_accuracy)
    assert run.data.tags["method"] == "fedwcm"


@pytest.mark.slow
def test_mlflow_writes_to_the_server_of_its_variable_and_says_that_a_run_failed(
    in_mlflow: fedwcm.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, uri = mlflow_client(folder_of(in_mlflow, "mlflow"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    out = tmp_path / "elsewhere"
    with pytest.raises(DivergedError):
        fedwcm.run("fedavg", track="mlflow", out=out, **{**SMALL, "rounds": 9, "lr": 1e18})
    run = client.get_run((out / "mlruns" / "run-id").read_text().strip())
    assert run.info.status == "FAILED"
    assert "NaN" in run.data.tags["diverged"]
    assert client.get_experiment(run.info.experiment_id).name == "mine"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://host.example:5000/")
    assert views(["mlflow"], out)["mlflow"].startswith("https://host.example:5000/#/experiments/")
    assert not (out / "mlruns" / "mlflow.db").exists()


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of an offline run: protocol buffers in a log of 32 KiB blocks."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            yield Record.FromString(parts)
            parts = b""


def test_wandb_holds_one_run_with_options_rounds_and_summary(tracked: fedwcm.Result) -> None:
    folder = folder_of(tracked, "wandb")
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 2  # before and after the stop
    records = [list(wandb_records(path)) for path in files]
    runs = [next(r.run for r in part if r.HasField("run")) for part in records]
    assert runs[0].run_id == runs[1].run_id == (folder / "wandb" / "run-id").read_text().strip()
    config = {update.key: json.loads(update.value_json) for update in runs[0].config.update}
    assert config["method.name"] == "fedwcm"
    logged = []
    for part in records:
        for record in part:
            items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            if items:
                logged.append((items["round"], items["test_accuracy"]))
    assert sorted(set(logged)) == expected(tracked, "test_accuracy")
    summary = {u.key: json.loads(u.value_json) for r in records[1] for u in r.summary.update if u.key}
    assert summary["final_accuracy"] == tracked.summary.final_accuracy


@pytest.mark.slow
def test_runs_of_a_comparison_in_several_processes_are_tracked_each_in_its_folder(tmp_path: Path) -> None:
    if "tensorboard" not in NAMES:
        pytest.skip(MISSING.format("tensorboard"))
    fedwcm.compare(["fedavg", "fedwcm"], [0], tmp_path, jobs=2, track="tensorboard", report=False, **SMALL)
    for name in ("fedavg-seed0", "fedwcm-seed0"):
        assert list((tmp_path / "runs" / name / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("classes", [3, MOST_LABELLED + 1])
def test_a_confusion_matrix_is_darkest_where_all_of_a_class_went(classes: int) -> None:
    confusion = np.zeros((classes, classes), dtype=int)
    confusion[:, 0] = 7  # the first class swallows the others
    confusion[2] = 0  # of this one there was no test sample
    image = confusion_image(confusion.tolist(), [f"a long name of {i}" for i in range(classes)])
    side = -(-480 // classes)
    left = image.shape[1] - side * classes
    assert (left > 0) == (classes <= MOST_LABELLED)
    corner = image[side // 8, left + side // 8]
    assert tuple(corner) == DARK
    assert (image[side : 2 * side, left + side :] == 255).all()
    assert (image[2 * side : 3 * side, left : left + side] == 255).all()


def test_a_scalar_is_shown_in_a_group() -> None:
    keys = ("val_loss", "train_set_accuracy", "alpha", "per_class_accuracy/3", "tail_classes")
    tags = ["loss/val_loss", "accuracy/train_set_accuracy", "momentum/alpha", "per_class_accuracy/3"]
    assert [tag_of(key) for key in keys] == [*tags, "diagnostics/tail_classes"]
