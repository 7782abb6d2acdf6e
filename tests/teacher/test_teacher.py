"""Laws of a teacher: its file, the clients' loss that listens to it, and CLIP as the one who is asked."""

import math
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

import fedwcm
from fedwcm.core.batch import InMemoryFederation
from fedwcm.data import Dataset, load_dataset
from fedwcm.losses.distillation import Distillation
from fedwcm.methods.clip2fl import CLIP2FL
from fedwcm.methods.fedavg import FedAvg
from fedwcm.teacher import Teacher, zero_shot
from fedwcm.teacher.__main__ import main
from tests.factories import BY_STEPS, CLASSES, Bench, Clusters, clusters, mlp, population
from tests.specimens import ByAutograd

CREFF = {"features": 20, "match_steps": 20, "feature_lr": 1.0, "retrain_epochs": 50, "retrain_lr": 0.1}
CHEAP: dict[str, Any] = {f"method.{key}": value for key, value in CREFF.items()}
"""CReFF with a tenth of its usual work on the server."""


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@pytest.fixture(scope="module")
def data() -> Clusters:
    return clusters()


# --- the file --------------------------------------------------------------------------------------------


def test_teacher_file_round_trips(tmp_path: Path) -> None:
    teacher = Teacher(numbers(4, 2), numbers(2, 3), torch.tensor([0, 1, 1, 0]), "a digest")
    teacher.write(tmp_path / "t.safetensors")
    again = Teacher.read(tmp_path / "t.safetensors")
    for key in ("logits", "embeddings", "labels"):
        assert torch.equal(getattr(teacher, key), getattr(again, key))
    assert again.fingerprint == "a digest"


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="labels"):
        Teacher(numbers(4, 2), numbers(2, 3), torch.tensor([0]))
    with pytest.raises(ValueError, match="embeddings"):
        Teacher(numbers(4, 2), numbers(3, 3), torch.tensor([0, 1, 1, 0]))


@pytest.mark.parametrize("name", ["logits", "embeddings"])
def test_numbers_that_are_not_finite_are_refused(name: str) -> None:
    tables: Any = {"logits": torch.zeros(4, 3), "embeddings": torch.zeros(3, 2)}
    tables[name][2, 1] = math.nan
    with pytest.raises(ValueError, match=f"teacher's {name} have a NaN or an infinity in 1 rows, the first 2"):
        Teacher(**tables, labels=torch.zeros(4, dtype=torch.int64))


def test_missing_or_foreign_file_is_named_with_the_cure(tmp_path: Path, data: Clusters) -> None:
    absent, foreign = tmp_path / "absent", tmp_path / "foreign"
    foreign.write_text("not tensors")
    known, x = population(data.federation), numbers(3)
    with pytest.raises(FileNotFoundError, match=r"absent: make one with python -m fedwcm\.teacher"):
        CLIP2FL(teacher=str(absent)).init(x, known)
    with pytest.raises(ValueError, match="foreign is not a teacher file"):
        Bench(FedAvg(), data, mlp(), loss=Distillation(teacher=str(foreign))).train()


def test_teacher_of_other_data_is_refused(tmp_path: Path, data: Clusters) -> None:
    n, path = len(data.labels), str(tmp_path / "t.safetensors")
    labels = torch.from_numpy(data.labels)

    def objective() -> Distillation:
        return Distillation(teacher=path)  # a new one each time: it reads its file once

    Teacher(numbers(n, 4), numbers(4, 2), labels).write(path)
    with pytest.raises(ValueError, match="4 classes, but the data has 3"):
        CLIP2FL(teacher=path).init(numbers(3), population(data.federation))
    with pytest.raises(ValueError, match="4 classes, but the data has 3"):
        Bench(FedAvg(), data, mlp(), loss=objective()).train()
    for strange in (labels[:-1], (labels + 1) % CLASSES):
        Teacher(numbers(len(strange), CLASSES), numbers(CLASSES, 2), strange).write(path)
        with pytest.raises(ValueError, match="different training samples"):
            Bench(FedAvg(), data, mlp(), loss=objective()).train()


def test_teacher_of_another_seeds_split_is_refused_though_the_labels_are_the_same(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.repeat(np.arange(3), 20)
    path = tmp_path / "t.safetensors"
    other = load_dataset((x, y), seed=1)
    assert np.array_equal(other.y_train, load_dataset((x, y), seed=0).y_train)
    Teacher.of(other, numbers(48, 3).float(), numbers(3, 2).float()).write(path)
    loss = Distillation(teacher=str(path))
    options: Any = {"dataset": (x, y), "clients": 3, "imbalance": 0.5, "rounds": 1, "loss": loss}
    with pytest.raises(ValueError, match=r"t\.safetensors was made for different training samples"):
        fedwcm.run("fedavg", seed=0, **options)
    assert fedwcm.run("fedavg", seed=1, **options).summary.rounds == 1


# --- the clients' loss -----------------------------------------------------------------------------------


def test_distillation_without_weight_is_cross_entropy_and_needs_no_file(data: Clusters) -> None:
    plain, taught = (
        Bench(FedAvg(), data, mlp(), stacked=True, loss=o).train()
        for o in (ByAutograd(), Distillation(alpha=0.0, teacher="nowhere"))
    )
    assert torch.equal(plain.upload["delta"], taught.upload["delta"])


@pytest.mark.parametrize("stacked", [False, True])
def test_distillation_loss_is_the_papers_and_follows_the_numbers_of_the_samples(
    tmp_path: Path, data: Clusters, stacked: bool
) -> None:
    """The federation's rows are a shuffled selection of a larger data set; one full batch, one step."""
    n, path = 2 * len(data.labels), str(tmp_path / "t.safetensors")
    ids = np.random.default_rng(1).permutation(n)[: len(data.labels)]
    labels = torch.zeros(n, dtype=torch.int64)
    labels[ids] = torch.from_numpy(data.labels)
    message = numbers(n, CLASSES)
    Teacher(message, numbers(CLASSES, 2), labels).write(path)
    federation = InMemoryFederation(torch.from_numpy(data.inputs), data.labels, data.parts, CLASSES, ids)
    moved = Clusters(data.inputs, data.labels, data.parts, federation)
    objective = Distillation(teacher=path, alpha=0.7, temperature=2.0)
    bench = Bench(FedAvg(), moved, mlp(), stacked=stacked, loss=objective, epochs=1, batch_size=64, lr=1.0)
    sent = bench.train()
    for row, client in enumerate(BY_STEPS):
        module, rows = mlp(), data.parts[client]
        logits = module(torch.from_numpy(data.inputs[rows]))
        divergence = kl_div(
            log_softmax(logits / 2.0, dim=-1), softmax(message[ids[rows]] / 2.0, dim=-1), reduction="batchmean"
        )
        loss = cross_entropy(logits, torch.from_numpy(data.labels[rows])) + 0.7 * 4.0 * divergence
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
        torch.testing.assert_close(sent.upload["delta"][row], -gradient)


# --- CLIP ------------------------------------------------------------------------------------------------


class ByColour:
    """An encoder that embeds an image by its mean colour and a text by the colour that it names."""

    COLOURS = ("deep red", "green", "blue")

    def images(self, images: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
        return torch.from_numpy(images.mean(axis=(1, 2)))

    def texts(self, texts: Sequence[str]) -> Tensor:
        return torch.stack(
            [torch.eye(3)[self.COLOURS.index(text.removeprefix("a photo of a "))] for text in texts]
        )


def coloured(shade: int = 200) -> Dataset:
    """Small images of one colour each, in three classes."""
    labels = np.arange(9, dtype=np.int64) % 3
    images = np.full((9, 4, 4, 3), 10, dtype=np.uint8)
    images[np.arange(9), :, :, labels] = shade
    return Dataset("colours", images, labels, images, labels, ("deep_red", "green", "blue"))


def test_zero_shot_logits_are_a_hundred_times_the_cosine() -> None:
    teacher = zero_shot(coloured(), ByColour())
    length = math.sqrt(200**2 + 2 * 10**2)
    expected = (1000.0 + 19000.0 * torch.eye(3)[teacher.labels]) / length
    torch.testing.assert_close(teacher.logits, expected.float())
    torch.testing.assert_close(teacher.embeddings, torch.eye(3))


def test_tables_are_refused() -> None:
    x, y = np.zeros((4, 2), dtype=np.float32), np.array([0, 1, 0, 1])
    with pytest.raises(ValueError, match="CLIP reads 8-bit images only"):
        zero_shot(Dataset("rows", x, y, x, y, ("a", "b")), ByColour())


def test_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    assert main(["--dataset", "digits"]) == 2
    assert "pip install open_clip_torch" in capsys.readouterr().err


def fake_open_clip(asked: list[tuple[str, str]]) -> SimpleNamespace:
    """Stands in for the package: two sizes of picture, and an embedding that is their mean brightness."""

    def create(model: str, pretrained: str, device: str) -> tuple[Any, None, Any]:
        asked.append((model, pretrained))
        if pretrained == "absent":
            raise RuntimeError("no such weights")
        module: Any = SimpleNamespace(
            encode_image=lambda pixels: pixels.mean(dim=(1, 2)),
            encode_text=lambda tokens: torch.eye(3)[tokens % 3],
            eval=lambda: module,
        )
        return module, None, lambda image: torch.from_numpy(np.array(image)).float()

    return SimpleNamespace(
        create_model_and_transforms=create, get_tokenizer=lambda model: lambda texts: torch.arange(len(texts))
    )


def test_command_writes_a_teacher_for_the_whole_training_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setitem(sys.modules, "open_clip", fake_open_clip(asked))
    out = tmp_path / "t.safetensors"
    assert main(["--dataset", "digits", "--model", "M", "--weights", "w", "--out", str(out)]) == 0
    assert asked == [("M", "w")]
    digits, teacher = load_dataset("digits"), Teacher.read(out)
    assert torch.equal(teacher.labels, torch.from_numpy(digits.y_train))
    assert teacher.logits.shape == (len(digits.y_train), 10)
    # Grey pictures reach CLIP in three equal channels, so every class is equally near.
    torch.testing.assert_close(teacher.logits, torch.full_like(teacher.logits, 100 / math.sqrt(3)))
    assert f"{len(digits.y_train)} samples" in capsys.readouterr().out


def test_missing_weights_are_named_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", fake_open_clip([]))
    assert main(["--dataset", "digits", "--weights", "absent"]) == 2
    error = capsys.readouterr().err
    assert "no such weights" in error
    assert "--weights FILE" in error


# --- runs with a teacher that was trained on the spot ------------------------------------------------------------


@pytest.fixture(scope="module")
def digits_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network trained on the balanced digits; its mean features of a class are the class's embedding."""
    digits = load_dataset("digits")
    inputs = torch.from_numpy(digits.x_train).float().flatten(1) / 255
    labels = torch.from_numpy(digits.y_train)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body, head = nn.Sequential(nn.Linear(64, 48), nn.ReLU()), nn.Linear(48, 10)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        cross_entropy(head(body(inputs)), labels).backward()
        optimizer.step()
    with torch.no_grad():
        features = body(inputs)
        means = torch.stack([features[labels == c].mean(dim=0) for c in range(10)])
        teacher = Teacher.of(digits, head(features), means)
    path = tmp_path_factory.mktemp("teacher") / "digits.safetensors"
    teacher.write(path)
    return path


def test_creff_and_clip2fl_beat_fedavg_on_the_rare_classes_of_the_digits(digits_teacher: Path) -> None:
    taught = {f"{part}.teacher": str(digits_teacher) for part in ("method", "loss")}
    few = {}
    for name, settings in {"fedavg": {}, "creff": CHEAP, "clip2fl": CHEAP | taught}.items():
        run = fedwcm.run(
            name, dataset="digits", clients=20, participation=0.5, rounds=12, eval_every=12, settings=settings
        )
        few[name] = run.summary.few
    assert few["creff"] > few["fedavg"] + 0.1
    assert few["clip2fl"] > few["fedavg"] + 0.1


def test_the_example_of_an_own_teacher_makes_a_file_that_clip2fl_trains_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Path(__file__).parents[2] / "examples" / "own-teacher" / "make_teacher.py"
    file = tmp_path / "teacher.safetensors"
    monkeypatch.setattr(sys, "argv", [str(script), "--dataset", "digits", "--out", str(file)])
    runpy.run_path(str(script), run_name="__main__")
    assert "1,438 samples" in capsys.readouterr().out
    settings = {**CHEAP, "method.teacher": str(file), "loss.teacher": str(file)}
    result = fedwcm.run("clip2fl", settings=settings, dataset="digits", clients=5, participation=1.0, rounds=2)
    assert result.summary.final_accuracy > 0.2


def test_a_teacher_that_has_changed_is_noticed(tmp_path: Path) -> None:
    file, digits = tmp_path / "teacher.safetensors", load_dataset("digits", seed=0)
    logits = torch.nn.functional.one_hot(torch.from_numpy(digits.y_train), 10).float()
    Teacher.of(digits, logits, torch.eye(10)).write(file)
    settings = {"loss.name": "distillation", "loss.teacher": str(file)}
    options: Any = {"dataset": "digits", "clients": 4, "rounds": 1, "report": False, "settings": settings}
    fedwcm.compare(["fedavg"], [0], tmp_path / "c", **options)
    fedwcm.compare(["fedavg"], [0], tmp_path / "c", **options)
    run = tmp_path / "c" / "runs" / "fedavg-seed0"
    fedwcm.run(out=run, resume=True, rounds=2, report=False)
    Teacher.of(digits, logits.roll(1, 1), torch.eye(10)).write(file)
    with pytest.raises(ValueError, match=r"loss\.teacher: .*#\w{16} is now .*#\w{16}"):
        fedwcm.compare(["fedavg"], [0], tmp_path / "c", **{**options, "rounds": 2})
    with pytest.raises(ValueError, match="has changed since: it is not the teacher that the run had"):
        fedwcm.run(out=run, resume=True, rounds=3, report=False)
    with pytest.raises(ValueError, match="has changed since"):
        Teacher.read(f"{file}#{'0' * 16}")
