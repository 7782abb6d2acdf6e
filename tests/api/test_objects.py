"""Objects in place of names: they run, they are recorded, and a run of them can be resumed."""

import json
import runpy
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import fedwcm
from fedwcm.api.description import describe_objects
from fedwcm.cli import main
from fedwcm.config.resolve import ObjectNeededError
from fedwcm.config.settings import read_toml
from fedwcm.data import load_dataset
from fedwcm.data.partition import IID
from fedwcm.losses.focal import Focal
from fedwcm.methods.fedcm import FedCM
from fedwcm.samplers.balanced import Balanced

from ..records import timeless
from .objects import SMALL, Backwards, Margin, Tilted, digits, tiny

HERE = Tilted.__module__


def losses(**options: Any) -> list[object]:
    return [
        record.test_loss for record in fedwcm.run(**{**SMALL, "rounds": 1, "dataset": digits(), **options}).history
    ]


@pytest.mark.parametrize(
    ("by_object", "by_name"),
    [
        ({"method": FedCM(alpha=0.3)}, {"method": "fedcm[alpha=0.3]"}),
        ({"method": FedCM, "settings": {"method.alpha": 0.3}}, {"method": "fedcm[alpha=0.3]"}),
        ({"method": Tilted(power=1.0)}, {"method": "fedavg"}),
        ({"method": f"{HERE}:Tilted[power=2.0]"}, {"method": Tilted(power=2.0)}),
        ({"loss": Focal()}, {"loss": "focal"}),
        ({"loss": Margin(width=2.0)}, {"loss": f"{HERE}:Margin[width=2.0]"}),
        ({"loss": Margin}, {"loss": f"{HERE}:Margin"}),
        ({"sampler": Balanced}, {"sampler": "balanced"}),
        ({"sampler": Backwards()}, {"sampler": f"{HERE}:Backwards"}),
        ({"model": tiny}, {"model": f"{HERE}:tiny"}),
        ({"model": tiny, "settings": {"model.width": 5}}, {"model": f"{HERE}:tiny[width=5]"}),
        ({"partition": IID(clients=6), "clients": None}, {"partition": "iid"}),
    ],
)
def test_an_object_and_its_name_are_the_same_run(by_object: dict[str, Any], by_name: dict[str, Any]) -> None:
    defaults = {"method": "fedavg"}
    assert losses(**{**defaults, **by_object}) == losses(**{**defaults, **by_name})


def test_options_of_an_object_take_effect() -> None:
    uneven = {"partition": "fedgrab", "beta": 0.5}
    cubed = losses(method=Tilted(power=3.0), **uneven)
    assert losses(method=Tilted(power=0.0), **uneven) != cubed
    for method in (Tilted(), local_method(), local_method()(power=0.5)):
        assert losses(method=method, settings={"method.power": 3.0}, **uneven) == cubed
    with pytest.raises(ValueError, match=r"method\.pwer.*Did you mean 'method\.power'"):
        losses(method=Tilted(), settings={"method.pwer": 3.0})


def test_a_module_starts_from_its_own_weights_and_is_left_as_it_was() -> None:
    torch.manual_seed(7)
    module = tiny((64,), 10)
    before = [parameter.clone() for parameter in module.parameters()]
    first = fedwcm.run("fedavg", dataset=digits(), model=module, **SMALL)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert timeless(first.history) == timeless(
        fedwcm.run("fedavg", dataset=digits(), model=module, **SMALL).history
    )
    assert first.history != fedwcm.run("fedavg", dataset=digits(), model=tiny((64,), 10), **SMALL).history
    assert type(first.model) is nn.Sequential


class Rows(TorchDataset[tuple[Tensor, int]]):
    """A data set of torch that is more than tensors."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.x[i]), int(self.y[i])


def sources() -> dict[str, Any]:
    x, y = digits()
    return {
        "arrays": (x, y),
        "tensors": (torch.from_numpy(x), torch.from_numpy(y)),
        "lists": (x.tolist(), y.tolist()),
        "dict": {"x": x, "y": y},
        "tensor dataset": TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
        "torch dataset": Rows(x, y),
        "fedwcm dataset": load_dataset((x, y)),
    }


@pytest.mark.parametrize("kind", sorted(sources()))
def test_the_same_data_in_any_form_is_the_same_run(kind: str) -> None:
    assert losses(dataset=sources()[kind]) == losses()


def test_a_dataframe_and_a_hugging_face_set_are_the_same_run_as_their_csv_file(tmp_path: Path) -> None:
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    x, y = digits()
    frame = pandas.DataFrame(x[:, 8:24], columns=[f"p{i}" for i in range(16)])
    frame["digit"], frame["writer"] = [f"d{label}" for label in y], np.arange(len(y)) % 5
    frame.to_csv(tmp_path / "digits.csv", index=False)
    columns = {"label": "digit", "client": "writer", "clients": None}
    expected = losses(dataset=tmp_path / "digits.csv", **columns)
    assert losses(dataset=frame, **columns) == expected
    assert losses(dataset=datasets.Dataset.from_pandas(frame), **columns) == expected
    with pytest.raises(ValueError, match=r"no column 'digt'.*did you mean 'digit'"):
        losses(dataset=frame, label="digt", clients=None)


def test_parts_that_are_given_are_used_as_they_are() -> None:
    x, y = digits()
    four = (x[:400], y[:400], x[400:], y[400:])
    expected = losses(dataset=four)
    named = dict(zip(("x_train", "y_train", "x_test", "y_test"), four, strict=True))
    assert losses(dataset=named) == expected
    parts = {"Training": (x[:400], y[:400]), "TEST": (x[400:], y[400:])}
    assert losses(dataset=parts) == losses(dataset=tuple(parts.values())) == expected
    assert losses(dataset={name: Rows(*part) for name, part in parts.items()}) == expected
    assert losses(dataset=(Rows(x[:400], y[:400]), Rows(x[400:], y[400:]))) == expected
    assert expected != losses()


def test_images_of_torch_have_their_channels_first() -> None:
    x, y = digits()
    images = (x.reshape(-1, 8, 8, 1) * 15).astype(np.uint8)
    first = torch.from_numpy(images).permute(0, 3, 1, 2)
    assert losses(dataset=(first, y)) == losses(dataset=(images, y))


def test_ready_made_clients_and_client_ids_are_the_natural_partition() -> None:
    x, y = digits()
    owner: Any = np.arange(len(y)) % 4
    held = [(x[owner == k], y[owner == k]) for k in range(4)]
    by_list = fedwcm.partition(dataset=held)
    by_name = fedwcm.partition(dataset={f"site {k}": pair for k, pair in enumerate(held)})
    by_ids = fedwcm.partition(dataset=(x, y), clients=owner)
    assert by_list.config.partition.name == "natural"
    assert by_list.counts.shape == by_name.counts.shape == by_ids.counts.shape == (4, 10)
    assert by_ids.counts.sum() == pytest.approx(0.8 * len(y), abs=6)
    assert losses(clients=owner) == losses(clients=[f"site {k}" for k in owner])
    assert fedwcm.partition(dataset=(x, y), clients=np.int64(7), beta=np.float32(0.5)).counts.shape[0] == 7  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"partition\.beta is not an option"):
        fedwcm.partition(dataset=(x, y), clients=owner, beta=0.5)
    with pytest.raises(ValueError, match=r"600.* samples but 3 clients"):
        fedwcm.partition(dataset=(x, y), clients=[0, 0, 1])


def test_client_ids_go_with_a_data_set_that_is_made_already() -> None:
    whole = load_dataset(digits())
    ids = np.arange(len(whole.y_train)) % 3
    counts = fedwcm.partition(dataset=whole, clients=ids).counts
    assert counts.sum(axis=1).tolist() == np.bincount(ids).tolist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": 3}, r"method = 3 is not allowed.*fedwcm\.Method"),
        ({"method": Margin}, r"it must be a name, or a fedwcm\.Method or its class"),
        ({"loss": Tilted()}, r"fedwcm\.Loss"),
        ({"loss": f"{HERE}:Tilted"}, r"is not a subclass of fedwcm\.Loss"),
        ({"sampler": f"{HERE}:Sideways"}, "cannot be loaded"),
        ({"model": 3}, "model = 3 is not allowed"),
        ({"partition": 3}, "partition = 3 is not allowed"),
        ({"dataset": (1, 2, 3)}, r"dataset is a tuple of 3.*\(x_train, y_train, x_test, y_test\)"),
        ({"dataset": {"x": [[1.0]], "yy": [0]}}, "unknown array 'yy'.*did you mean 'y'"),
        ({"dataset": {"val": digits(), "test": digits()}}, "'val', 'test': it must have one called 'train'"),
        (
            {"dataset": dict.fromkeys(["train", "test", "x"], digits())},
            "'x': they must be 'train', 'val' and 'test'",
        ),
        ({"partition": "iid", "clients": np.zeros(600)}, "omit partition"),
    ],
)
def test_what_is_no_object_of_the_kind_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses(**wrong)


@pytest.mark.parametrize(
    ("kind", "instance"), [("loss", Margin()), ("sampler", Backwards()), ("partition", partial(len))]
)
def test_attributes_that_no_folder_would_record_are_refused(kind: str, instance: Any) -> None:
    object.__setattr__(instance, "weight", 1.0)  # as an __init__ of its own may do
    with pytest.raises(ValueError, match="no run records, weight: make it a frozen dataclass"):
        describe_objects({kind: instance})


def test_a_cached_property_is_no_attribute_of_ones_own() -> None:
    class Caching(Margin):
        @cached_property
        def double(self) -> float:
            return 2 * self.width

    loss = Caching(width=3.0)
    assert loss.double == 6.0
    assert describe_objects({"loss": loss})["loss"].options == {"width": 3.0}


# --- what a run of objects leaves behind ----------------------------------------------------------------


def local_method() -> Any:
    """A class that no text finds again, as one of a notebook's cell."""

    @dataclass(frozen=True, kw_only=True)
    class InACell(Tilted):
        """Like its parent."""

    return InACell


def test_what_text_can_rebuild_is_text_and_the_rest_says_that_it_is_not(tmp_path: Path) -> None:
    cell = local_method()
    owner: Any = np.arange(600) % 4
    module = tiny((64,), 10)
    fedwcm.run(
        cell(power=2.0), dataset=digits(), model=module, loss=Margin(), out=tmp_path, **SMALL | {"clients": owner}
    )
    settings = read_toml(tmp_path / "config.toml")
    assert settings["method.name"] == f"object:{__name__}.local_method.<locals>.InACell"
    assert settings["method.power"] == 2.0
    assert settings["loss.name"] == f"{HERE}:Margin"
    assert settings["model.name"] == "object:torch.nn.modules.container.Sequential"
    assert settings["model.parameters"] == 64 * 8 + 8 + 8 * 10 + 10
    assert str(settings["data.dataset"]).startswith("object:arrays#")
    assert str(settings["partition.name"]).startswith("object:client_ids#")
    assert describe_objects({"method": FedCM(alpha=0.3)})["method"].value is None


def test_a_resumed_run_of_objects_is_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    cell, module = local_method(), tiny((64,), 10)
    given: Any = {
        "dataset": digits(),
        "model": module,
        "loss": Margin,
        "clients": np.arange(600) % 4,
        "sampler": Backwards(),
    }
    options: dict[str, Any] = {**SMALL, **given, "rounds": 6, "settings": {"run.checkpoint_every": 2}}
    whole = fedwcm.run(cell(power=2.0), out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        fedwcm.run(cell(power=2.0), out=tmp_path / "cut", progress=StopAfter(3), **options)  # type: ignore[arg-type]
    needed = {"method": "method", "dataset": "data", "model": "model", "clients": "partition"}
    for keyword, kind in needed.items():
        again = {key: value for key, value in {**given, "method": cell}.items() if key != keyword}
        with pytest.raises(ObjectNeededError, match=f"the {kind} was given as an object.*as {keyword}="):
            fedwcm.run(out=tmp_path / "cut", resume=True, **again)
    other = replace(cell(power=2.0), power=3.0)
    with pytest.raises(ValueError, match=r"method\.power: 2\.0 is now 3\.0"):
        fedwcm.run(other, out=tmp_path / "cut", resume=True, **given)
    x, y = digits()
    with pytest.raises(ValueError, match=r"data\.dataset: object:arrays#.* is now object:arrays#"):
        fedwcm.run(cell, out=tmp_path / "cut", resume=True, **given | {"dataset": (x + 1, y)})
    with pytest.raises(ValueError, match=r"model\.layout"):
        fedwcm.run(cell, out=tmp_path / "cut", resume=True, **given | {"model": tiny((64,), 10, 5)})
    resumed = fedwcm.run(cell, out=tmp_path / "cut", resume=True, trust=True, **given | {"model": tiny((64,), 10)})
    assert timeless(resumed.history) == timeless(whole.history)
    weights = [fedwcm.load_model(tmp_path / name, model=module).state_dict() for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


class StopAfter:
    """A user who presses Ctrl-C."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def start(self, title: str, rounds: int, done: int) -> None:
        pass

    def round(self, number: int, record: dict[str, object]) -> None:
        if number == self.rounds:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


def test_resume_without_options_goes_on_with_those_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {**SMALL, "rounds": 4, "lr": 0.05, "seed": 3}
    whole = fedwcm.run("fedcm[alpha=0.3]", dataset="digits", **options)
    with pytest.raises(KeyboardInterrupt):
        fedwcm.run("fedcm[alpha=0.3]", dataset="digits", out=tmp_path, progress=StopAfter(2), **options)  # type: ignore[arg-type]
    assert main(["run", "--out", str(tmp_path), "--resume", "--quiet"]) == 0
    resumed = fedwcm.run(out=tmp_path, resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    assert resumed.summary.name == "fedcm[alpha=0.3]"


def test_a_name_that_only_the_folder_knows_runs_no_code(tmp_path: Path) -> None:
    options: Any = {**SMALL, "dataset": digits()}
    fedwcm.run(Tilted, model=tiny, out=tmp_path, **options)
    for call in (
        lambda: fedwcm.load_model(tmp_path),
        lambda: fedwcm.evaluate(tmp_path, digits()),
        lambda: fedwcm.run(out=tmp_path, resume=True, dataset=digits()),
        lambda: fedwcm.run(Tilted, out=tmp_path, resume=True, dataset=digits()),
    ):
        with pytest.raises(ValueError, match="only the run's folder names"):
            call()
    assert isinstance(fedwcm.load_model(tmp_path, model=tiny), nn.Module)
    assert isinstance(fedwcm.load_model(tmp_path, trust=True), nn.Module)
    assert fedwcm.run(Tilted, model=tiny, out=tmp_path, resume=True, dataset=digits()).folder == tmp_path


def test_a_module_that_does_not_fit_the_weights_is_refused(tmp_path: Path) -> None:
    fedwcm.run("fedavg", dataset=digits(), model=tiny((64,), 10), out=tmp_path, **SMALL)
    with pytest.raises(ObjectNeededError, match="the model was given as an object"):
        fedwcm.load_model(tmp_path)
    with pytest.raises(ValueError, match="does not fit the weights"):
        fedwcm.load_model(tmp_path, model=tiny((64,), 10, 5))


def test_compare_mixes_names_and_objects(tmp_path: Path) -> None:
    methods = ["fedavg", Tilted, Tilted(power=2.0), local_method()(power=2.0)]
    uneven: dict[str, Any] = {**SMALL, "partition": "fedgrab", "beta": 0.5}
    comparison = fedwcm.compare(methods, [0], tmp_path, dataset=digits(), loss=Margin(), **uneven)
    assert list(comparison.runs) == ["fedavg", "Tilted", "Tilted[power=2.0]", "InACell[power=2.0]"]
    finals = {label: results[0].summary.test_loss for label, results in comparison.runs.items()}
    assert finals["fedavg"] == finals["Tilted"]
    assert finals["Tilted"] != finals["Tilted[power=2.0]"] == finals["InACell[power=2.0]"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    fedwcm.compare(methods, [0], tmp_path, dataset=digits(), loss=Margin(), **uneven)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")} == before
    with pytest.raises(ValueError, match=r"methods has Tilted.* 2 times: leave it in once"):
        fedwcm.compare([Tilted(), Tilted()], [0], tmp_path / "twice", dataset=digits(), **SMALL)


def test_a_comparison_in_processes_is_the_same_also_with_objects(tmp_path: Path) -> None:
    tables = []
    for jobs in (1, 2):
        out, methods = tmp_path / str(jobs), ["fedavg", local_method()(power=2.0)]
        compared = fedwcm.compare(methods, [0], out, jobs=jobs, dataset=digits(), **{**SMALL, "rounds": 1})
        tables.append([row.values["final_accuracy"] for row in compared.rows])
        assert list(out.rglob("report.html")) == [out / "report.html"]
        assert [json.loads(file.read_text())[0]["jobs"] for file in out.rglob("environment.json")] == [jobs] * 2
    assert tables[0] == tables[1]


def test_names_of_ones_own_classes_work_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--loss", f"{HERE}:Margin[width=2]", "--sampler", f"{HERE}:Backwards", "--model", f"{HERE}:tiny"]
    command = ["run", "--method", f"{HERE}:Tilted[power=2]", *own, "--set", "model.width=5", "--dataset", "digits"]
    assert main([*command, "--rounds", "2", "--clients", "5", "--out", str(tmp_path / "run")]) == 0
    settings = read_toml(tmp_path / "run" / "config.toml")
    assert (settings["method.power"], settings["loss.width"], settings["model.width"]) == (2.0, 2.0, 5)
    assert f"{HERE}:Tilted[power=2] on digits" in capsys.readouterr().out


def test_a_class_of_the_main_module_runs_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "notebook.py"
    script.write_text(
        "from dataclasses import dataclass\nimport fedwcm\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(fedwcm.Method):\n    knob: float = 1.0\n"
        "result = fedwcm.run(Mine(knob=2.0), dataset='digits', clients=5, rounds=1, out='run')\n"
    )
    result = runpy.run_path(str(script), run_name="__main__")["result"]
    assert (result.config.method.name, result.summary.name) == ("object:__main__.Mine", "Mine")
    with pytest.raises(ObjectNeededError, match=r"the method was given as an object \(__main__\.Mine\)"):
        fedwcm.run(out=tmp_path / "run", resume=True)


def test_the_package_alone_imports_no_torch_and_names_its_classes() -> None:
    code = "import sys, fedwcm; print(dir(fedwcm)); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(name in done.stdout for name in ("Method", "Loss", "Sampler", "Dataset", "Partition", "predict"))
    assert all(isinstance(getattr(fedwcm, name), object) for name in fedwcm.__all__)
