"""A run that is stopped and resumed equals one that never stopped, whatever happened to it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fedwcm
from fedwcm.core.types import State
from fedwcm.engine.rounds import DivergedError, ServerState
from fedwcm.engine.store import ClientStore
from fedwcm.experiment import checkpoint, client_rows
from fedwcm.experiment.checkpoint import History
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.records import RoundRecord
from tests.records import round_record, timeless

SMALL: Any = {
    "dataset": "digits",
    "clients": 10,
    "participation": 0.4,
    "epochs": 1,
    "batch_size": 10,
    "rounds": 8,
    "settings": {"run.checkpoint_every": 2},
    "report": False,
}
LONGER: Any = {**SMALL, "rounds": SMALL["rounds"] + 1}


class Interrupted(Silent):
    """Progress that presses Ctrl-C after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, number: int, record: RoundRecord) -> None:
        if number == self.after:
            raise KeyboardInterrupt


def assert_same(resumed: fedwcm.Result, whole: fedwcm.Result) -> None:
    """The same rounds and the same model, bit for bit."""
    assert timeless(resumed.history) == timeless(whole.history)
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fedwcm.Result:
    """A finished run, to be read only."""
    return fedwcm.run("fedwcm", out=tmp_path_factory.mktemp("whole") / "run", **SMALL)


@pytest.fixture
def folder(whole: fedwcm.Result, tmp_path: Path) -> RunFolder:
    """A copy of the finished run, to be changed."""
    assert whole.folder is not None
    shutil.copytree(whole.folder, tmp_path / "run")
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize("method", ["fedwcm-x", "scaffold"])
def test_stopped_at_any_round_and_resumed_equals_never_stopped(method: str, tmp_path: Path) -> None:
    whole = fedwcm.run(method, **SMALL)
    for after in (1, 5, 6):
        out = tmp_path / f"{after}"
        with pytest.raises(KeyboardInterrupt):
            fedwcm.run(method, out=out, progress=Interrupted(after), **SMALL)
        assert_same(fedwcm.run(method, out=out, resume=True, **SMALL), whole)


def test_metrics_file_holds_the_history_of_the_run(whole: fedwcm.Result) -> None:
    assert whole.folder is not None
    folder = RunFolder(whole.folder)
    lines = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
    assert lines == [json.loads(json.dumps(record.to_json())) for record in whole.history]
    assert folder.metrics() == whole.history
    assert [line["round"] for line in lines] == list(range(1, 9))
    assert {"test_accuracy", "test_loss", "per_class_accuracy", "many", "few", "alpha", "gain"} <= set(lines[0])
    assert folder.summary() == whole.summary


def test_damaged_newest_checkpoint_falls_back_and_says_so(whole: fedwcm.Result, folder: RunFolder) -> None:
    newest = max(folder.checkpoints.iterdir())
    content = bytearray(newest.read_bytes())
    content[-100] ^= 0xFF
    newest.write_bytes(content)
    folder.summary_file.unlink()
    with pytest.warns(UserWarning, match="damaged"):
        assert_same(fedwcm.run("fedwcm", out=folder.path, resume=True, **SMALL), whole)


@pytest.mark.parametrize("damage", ["", "damaged\n"])
def test_metrics_that_changed_after_the_checkpoint_are_refused_and_kept(damage: str, folder: RunFolder) -> None:
    folder.metrics_file.write_text(damage)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is missing, was cut short or was edited"):
        fedwcm.run("fedwcm", out=folder.path, resume=True, **LONGER)
    assert folder.metrics_file.read_text() == damage


def test_metrics_that_were_cut_short_resume_from_the_checkpoint_before(
    whole: fedwcm.Result, folder: RunFolder
) -> None:
    folder.metrics_file.write_bytes(folder.metrics_file.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="resuming from the checkpoint of round 6"):
        resumed = fedwcm.run("fedwcm", out=folder.path, resume=True, **LONGER)
    assert timeless(resumed.history[: len(whole.history)]) == timeless(whole.history)


class Written(Silent):
    """Notes down the bytes that this process has written after each round."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def round(self, number: int, record: RoundRecord) -> None:
        facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        self.bytes.append(int(facts["wchar"]))


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs /proc")
def test_a_late_round_writes_no_more_than_an_early_one(tmp_path: Path) -> None:
    written = Written()
    settings = {"run.checkpoint_every": 1, "run.workers": 1, "model.hidden": [2]}
    options: Any = {
        "dataset": "digits",
        "clients": 4,
        "epochs": 1,
        "batch_size": 400,
        "model": "mlp",
        "rounds": 45,
    }
    fedwcm.run("fedavg", out=tmp_path, settings=settings, progress=written, report=False, **options)
    early, late = (written.bytes[n + 5] - written.bytes[n] for n in (10, 38))
    assert late < 1.05 * early


def test_starting_again_for_want_of_a_checkpoint_is_said(folder: RunFolder) -> None:
    shutil.rmtree(folder.checkpoints)
    with pytest.warns(UserWarning, match="has no checkpoint to resume from: starting with round 1"):
        fedwcm.run("fedwcm", out=folder.path, resume=True, **LONGER)


@pytest.mark.skipif(os.name != "posix", reason="file modes are those of POSIX")
def test_files_have_the_mode_of_new_files(folder: RunFolder) -> None:
    (folder.path / "new").touch()
    mode = (folder.path / "new").stat().st_mode
    files = [folder.model_file, folder.summary_file, *folder.checkpoints.iterdir()]
    assert {file.stat().st_mode for file in files} == {mode}


def test_client_state_is_saved_for_those_that_took_part(tmp_path: Path) -> None:
    template = {"c": torch.zeros(1, 3), "n": torch.zeros(1, dtype=torch.int64)}
    store = ClientStore(5, template)
    store.write(np.array([1, 3]), {"c": torch.tensor([[1.0, 2, 3], [4, 5, 6]]), "n": torch.tensor([7, 8])})
    state = ServerState(4, torch.ones(2), torch.zeros(0), {})
    history = History(RunFolder(tmp_path))
    history.append(round_record(4, few=0.5, alpha=0.1))
    checkpoint.save(tmp_path, checkpoint.Checkpoint(state, history.mark(), 1.5, {}), store)
    restored = History(RunFolder(tmp_path))
    other = ClientStore(5, template)
    saved, complaints = checkpoint.load(tmp_path, other, state, restored)
    assert saved is not None
    assert (restored.records, saved.seconds, complaints) == ([round_record(4, few=0.5, alpha=0.1)], 1.5, [])
    assert other.visited_clients().tolist() == [1, 3]
    rows = other.read(np.array([3, 1]), torch.device("cpu"))
    assert rows["c"].tolist() == [[4, 5, 6], [1, 2, 3]]
    assert rows["n"].tolist() == [8, 7]


def test_large_client_state_is_saved_one_client_at_a_time_and_only_if_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fedwcm.run("scaffold", **SMALL)
    written: list[str] = []
    monkeypatch.setattr(client_rows, "ROW_BYTES", 1)

    def save_row(state: State, draft: Path) -> None:
        assert {len(rows) for rows in state.values()} == {1}
        written.append(draft.name)
        save_file(state, draft)

    monkeypatch.setattr(client_rows, "save_file", save_row)
    for after in (3, 7):
        with pytest.raises(KeyboardInterrupt):
            fedwcm.run("scaffold", out=tmp_path, resume=after > 3, progress=Interrupted(after), **SMALL)
    folder = RunFolder(tmp_path).checkpoints
    damaged = max((folder / "clients").glob("*-round-000007.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    with pytest.warns(UserWarning, match=rf"checkpoint round-000007.*{damaged.name} is not the state of client"):
        assert_same(fedwcm.run("scaffold", out=tmp_path, resume=True, **SMALL), whole)
    took_part = {r: whole.history[r - 1].clients or () for r in range(1, 9)}
    assert len(written) == sum(
        len({*took_part[last], *(took_part[last - 1] if both else ())})
        for last, both in ((2, 1), (3, 0), (4, 0), (6, 1), (7, 0), (8, 1))
    )
    kept = {path.name for path in (folder / "clients").iterdir()}
    clients = {name.partition("-")[0] for name in kept}
    assert clients == {str(client) for took in took_part.values() for client in took}
    assert len(kept) <= len(clients) + len({*took_part[7], *took_part[8]})


def test_old_checkpoints_are_removed(folder: RunFolder) -> None:
    assert len(list(folder.checkpoints.iterdir())) == checkpoint.KEPT


def test_resuming_with_another_configuration_is_refused_by_name(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match=r"local\.lr: 0\.1 is now 0\.2"):
        fedwcm.run("fedwcm", out=folder.path, resume=True, lr=0.2, **SMALL)
    with pytest.raises(ValueError, match=r"method\.temperature_scale"):
        fedwcm.run("fedwcm[temperature_scale=0.3]", out=folder.path, resume=True, **SMALL)
    with pytest.raises(ValueError, match="holds a run already"):
        fedwcm.run("fedwcm", out=folder.path, **SMALL)


def test_resume_on_a_finished_run_returns_it(whole: fedwcm.Result, folder: RunFolder) -> None:
    before = folder.metrics_file.read_bytes()
    assert fedwcm.run("fedwcm", out=folder.path, resume=True, **SMALL).history == whole.history
    assert folder.metrics_file.read_bytes() == before


def test_running_the_written_configuration_again_gives_the_same_run(
    whole: fedwcm.Result, folder: RunFolder, tmp_path: Path
) -> None:
    assert_same(fedwcm.run(config=folder.config_file, out=tmp_path / "again", report=False), whole)
    assert RunFolder(tmp_path / "again").config_file.read_text() == folder.config_file.read_text()


def test_diverged_run_stops_and_keeps_its_history(tmp_path: Path) -> None:
    wild: Any = {**SMALL, "rounds": 30, "settings": {"local.lr": 1e18}}
    with pytest.raises(DivergedError, match="a NaN or an infinity"):
        fedwcm.run("fedavg", out=tmp_path / "run", **wild)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "infinity" in summary["diverged"]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == summary["rounds"]
    with pytest.raises(DivergedError):
        fedwcm.run("fedavg", out=tmp_path / "run", resume=True, **wild)


def test_what_is_loaded_is_aligned_in_memory_as_what_was_never_saved(folder: RunFolder) -> None:
    """Matrix products may round differently elsewhere, and a resumed run would not be the same to the last bit."""
    tensors = [tensor for path in folder.checkpoints.iterdir() for tensor in checkpoint._read(path)[1].values()]
    assert tensors
    assert {tensor.data_ptr() % 64 for tensor in tensors} == {0}
