"""Clients fine-tune the final model, all layers or the head alone, and are tested on their own rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import fedwcm
from fedwcm.api import personalization
from fedwcm.cli import main
from fedwcm.core.types import Context
from fedwcm.engine.client import Broadcast
from fedwcm.losses.prior_ce import PriorCE

PEOPLE, ROWS = 4, 60
RNG = np.random.default_rng(3)


def quarrelling() -> dict[str, np.ndarray]:
    """Half of the people call class 0 what the others call class 1: one model cannot please all of them."""
    side = RNG.integers(0, 2, PEOPLE * ROWS)
    owner = np.repeat(np.arange(PEOPLE), ROWS)
    x = np.stack([side * 4 - 2 + RNG.normal(size=len(side)), RNG.normal(size=len(side))], axis=1)
    names = np.array([f"p{who}" for who in owner])
    return {"x": x.astype(np.float32), "y": side ^ (owner % 2), "client": names}


SMALL: Any = {"rounds": 2, "epochs": 1, "batch_size": 10, "lr": 0.1}
SMALL |= {"settings": {"model.hidden": [8], "local.weight_decay": 0.01}}
DATA: Any = quarrelling()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("people") / "run"
    np.savez(out.parent / "people.npz", **DATA)
    fedwcm.run("fedwcm", dataset=out.parent / "people.npz", out=out, report=False, **SMALL)
    return out


@pytest.mark.parametrize("layers", ["all", "head"])
def test_clients_that_disagree_gain_by_fine_tuning(layers: str, folder: Path) -> None:
    record = fedwcm.personalize(folder, epochs=3, layers=layers)  # type: ignore[arg-type]
    summary = json.loads((folder / "summary.json").read_text())
    assert record.client_accuracy_before == pytest.approx(summary["client_accuracy"])
    assert record.before["client_mean"] == pytest.approx(summary["client_mean"])
    assert record.after["client_mean"] > record.before["client_mean"] + 0.2
    assert record.after["client_mean"] == pytest.approx(np.mean([*record.client_accuracy.values()]))
    assert not (folder / "personalized.json").exists()


@pytest.mark.parametrize("method", ["fedwcm+longtail", "fedetf"])
def test_a_model_with_scaled_logits_is_fine_tuned(method: str, folder: Path, tmp_path: Path) -> None:
    result = fedwcm.run(method, dataset=folder.parent / "people.npz", out=tmp_path / "run", report=False, **SMALL)
    before = fedwcm.personalize(result).client_accuracy_before
    assert before == pytest.approx(result.summary.client_accuracy)


class MyMethod(fedwcm.Method):
    """A method that nobody can import."""

    name = "mine"


def test_a_method_of_one_s_own_is_not_needed(tmp_path: Path) -> None:
    fedwcm.run(MyMethod(), dataset=DATA, out=tmp_path / "run", report=False, **SMALL)
    assert fedwcm.personalize(tmp_path / "run", DATA, epochs=3).gain > 0.2


def test_only_the_head_moves_if_it_alone_is_fine_tuned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    tune = personalization.fine_tune

    def watched(trainer, client, shard, sent: Broadcast):  # type: ignore[no-untyped-def]
        x, buffers = tune(trainer, client, shard, sent)
        layout = trainer.forward.network.layout
        changed = {part.name for part in layout.slices if not torch.equal(part.of(x), part.of(sent.x))}
        moved.append((changed, {part.name for part in layout.head_slices}, {part.name for part in layout.slices}))
        return x, buffers

    monkeypatch.setattr(personalization, "fine_tune", watched)
    fedwcm.personalize(folder, layers="head")
    assert len(moved) == PEOPLE
    assert all(changed == head for changed, head, _ in moved)
    moved.clear()
    fedwcm.personalize(folder, layers="all")
    assert all(changed == everything for changed, _, everything in moved)


def test_one_epoch_of_all_layers_is_a_round_of_fedavg_at_that_client_alone(tmp_path: Path) -> None:
    """The same loop: a federation of one client, one more round."""
    one: Any = {key: value[:ROWS] for key, value in DATA.items()}
    np.savez(tmp_path / "one.npz", **one)
    options: Any = {**SMALL, "dataset": tmp_path / "one.npz", "participation": 1.0, "report": False}
    fedwcm.run("fedavg", out=tmp_path / "short", **options)
    longer = fedwcm.run("fedavg", out=tmp_path / "long", **{**options, "rounds": 3})
    tuned = fedwcm.personalize(tmp_path / "short", epochs=1)
    assert tuned.client_accuracy == longer.summary.client_accuracy
    assert load_file(tmp_path / "short" / "model.safetensors")["head.weight"].shape[0] == 2


def test_a_longer_run_forgets_how_its_earlier_model_was_fine_tuned(tmp_path: Path) -> None:
    np.savez(tmp_path / "people.npz", **DATA)
    run = fedwcm.run("fedavg", out=tmp_path / "run", dataset=tmp_path / "people.npz", report=False, **SMALL)
    fedwcm.personalize(tmp_path / "run", write=True)
    assert (tmp_path / "run" / "personalized.json").exists()
    fedwcm.run(out=tmp_path / "run", resume=True, rounds=run.summary.rounds + 1, report=False)
    assert not (tmp_path / "run" / "personalized.json").exists()


def test_how_to_fine_tune_is_checked_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", "--dataset", "digits", "--personalize", "epochs=0", "--out", str(tmp_path / "run")]
    assert main(given) == 2
    assert "epochs" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_commands_say_before_and_after(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(folder), "--personalize", "epochs=2,layers=head"]) == 0
    output = capsys.readouterr().out
    assert f"fine-tuned by {PEOPLE} clients (2 epochs, layers: head)" in output
    assert "client worst decile" in output
    out = folder.parent / "again"
    given = ["run", "--config", str(folder / "config.toml"), "--personalize", "epochs=1"]
    assert main([*given, "--out", str(out)]) == 0
    assert "Each client before and after fine-tuning" in (out / "report.html").read_text("utf-8")
    given.append("--no-report")
    assert set(json.loads((out / "personalized.json").read_text())["client_accuracy"]) == set(DATA["client"])
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--personalize", "epochs=2,layers=head", "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)  # one object, nothing else
    assert f"{as_json['personalized']['after']['client_mean']:.4f}" in output
    assert as_json["samples"] == fedwcm.evaluate(folder).samples
    assert main([*given, "--out", str(folder.parent / "as-json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["personalized"] == json.loads(
        (folder.parent / "as-json" / "personalized.json").read_text()
    )
    assert main(["evaluate", str(folder), "--personalize", "epochs=1,layers=neck"]) == 2
    assert "personalize.layers" in capsys.readouterr().err


def test_what_cannot_be_personalised_is_refused_by_its_reason(folder: Path, tmp_path: Path) -> None:
    options: Any = {**SMALL, "rounds": 1, "report": False}
    fedwcm.run("fedavg", dataset=DATA, test_clients=["p1"], out=tmp_path / "unseen", **options)
    with pytest.raises(ValueError, match="whole clients were held out"):
        fedwcm.personalize(tmp_path / "unseen", dataset=DATA)
    fedwcm.run("fedavg", dataset="digits", clients=3, out=tmp_path / "made", **options)
    with pytest.raises(ValueError, match="a partition made the clients"):
        fedwcm.personalize(tmp_path / "made")
    other = {**DATA, "x": DATA["x"] + 1}
    with pytest.raises(ValueError, match="not the data that the run"):
        fedwcm.personalize(folder, dataset=other)


def test_naming_a_model_does_not_make_the_folder_s_other_names_trusted(tmp_path: Path) -> None:
    fedwcm.run(dataset=DATA, loss="tests.specimens:Scaled", model="mlp", out=tmp_path, report=False, **SMALL)
    with pytest.raises(ValueError, match="only the run's folder names"):
        fedwcm.personalize(tmp_path, dataset=DATA, model="mlp")
    assert fedwcm.personalize(tmp_path, dataset=DATA, model="mlp", trust=True).after


def test_the_loss_has_the_noisy_counts_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen, shift = quarrelling(), [], PriorCE._shift

    def watched(self: PriorCE, ctx: Context) -> Tensor:
        seen.append(shift(self, ctx))
        return seen[-1]

    monkeypatch.setattr(PriorCE, "_shift", watched)
    options: Any = {"rounds": 1, "epochs": 1, "participation": 1.0, "backend": "sequential", "report": False}
    fedwcm.run(
        "fedavg+prior_ce",
        dataset=data,
        settings={"privacy.epsilon": 0.05},
        out=tmp_path,
        **options,
    )
    trained = seen[0]
    seen.clear()
    fedwcm.personalize(tmp_path, data)
    torch.testing.assert_close(seen[0], trained)
