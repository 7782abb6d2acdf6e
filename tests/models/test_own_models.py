"""Models of the user's own: found, checked, and left as they were."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fedwcm
from fedwcm.config.schema import Component
from fedwcm.experiment.models import chosen_model
from fedwcm.models import build_model

from .test_models import equal_weights

OWN = """
import torch
from torch import nn

torch.rand(3)  # a draw at import time, which happens only once
FORTY_TWO = 42

class Net(nn.Module):
    def __init__(self, input_shape, classes, hidden=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(input_shape[0], hidden), nn.BatchNorm1d(hidden))
        self.out = nn.Linear(hidden, classes)
        self.layers[1].eval()

    def forward(self, x):
        return self.out(self.layers(x))

def options_only(num_classes):
    return nn.Linear(6, num_classes)

def positional(shape, n, depth=1):
    return nn.Linear(shape[0], n)

def one_unknown(width):
    return nn.Linear(6, width)

def any_option(**kwargs):
    return nn.Linear(6, kwargs["num_classes"])

def classes_only(classes):
    return nn.Linear(6, classes)

def lazy(classes):
    return nn.LazyLinear(classes)

def late_import(classes):
    import own_late
    return nn.Linear(own_late.FEATURES, classes)

def no_module(classes):
    return classes

def two_outputs(classes):
    class Two(nn.Module):
        def forward(self, x):
            return x, x
    return Two()
"""


def named_model(name: str, input_shape: tuple[int, ...], classes: int, seed: int, **options: object) -> nn.Module:
    """The model of this name, as the command line finds it."""
    return chosen_model(Component(name, options), input_shape, classes, seed)[0]


THAWED = """from dataclasses import dataclass
import fedwcm

@dataclass
class Tilted(fedwcm.Method):
    power: float = 1.0
"""


@pytest.fixture
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with the module `own`, not on the import path."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "own_late.py").write_text("FEATURES = 6")
    (tmp_path / "own_broken.py").write_text("import no_such_dependency")
    (tmp_path / "own_thawed.py").write_text(THAWED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for module in ("own", "own_late", "own_broken", "own_thawed"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        ("Net", {"hidden": 7}),
        ("Net", {}),
        ("options_only", {}),
        ("positional", {}),
        ("any_option", {"num_classes": 3}),
        ("classes_only", {}),
        ("lazy", {}),
        ("late_import", {}),
    ],
)
@pytest.mark.usefixtures("own_directory")
def test_own_factory_is_found_in_the_current_directory_and_leaves_no_trace(
    factory: str, options: dict[str, object]
) -> None:
    path, random_state = list(sys.path), torch.get_rng_state()
    first = named_model(f"own:{factory}", (6,), 3, 5, **options)
    assert sys.path == path
    assert torch.equal(torch.get_rng_state(), random_state)
    assert equal_weights(first, named_model(f"own:{factory}", (6,), 3, 5, **options))
    assert not equal_weights(first, named_model(f"own:{factory}", (6,), 3, 6, **options))


@pytest.mark.usefixtures("own_directory")
def test_own_model_keeps_the_mode_of_each_of_its_modules() -> None:
    model = named_model("own:Net", (6,), 3, 0)
    assert model.training
    assert model.out.training
    assert not model.layers[1].training
    assert model.layers[1].num_batches_tracked == 0


def test_own_factory_in_an_installed_package_needs_no_current_directory() -> None:
    model = named_model("torch.nn:Linear", (6,), 3, 0, in_features=6, out_features=3)
    assert isinstance(model, nn.Linear)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("no_such_module:net", {}, r"'no_such_module:net' cannot be loaded.*No module named"),
        ("own_broken:net", {}, r"'own_broken:net' cannot be loaded.*no_such_dependency"),
        ("own_thawed:net", {}, r"own_thawed\.py, line 4: TypeError: .*; write @dataclass\(frozen=True"),
        ("own:no_such_factory", {}, r"'own:no_such_factory' cannot be loaded.*no attribute"),
        (":net", {}, r"':net' cannot be loaded.*package\.module:Name"),
        ("own:", {}, r"'own:' is of type module"),
        ("own:FORTY_TWO", {}, r"'own:FORTY_TWO' is of type int"),
        ("own:no_module", {}, r"'no_module' gives the type int.*torch\.nn\.Module"),
        ("own:two_outputs", {}, r"'two_outputs' gives tuple.*\(2, 3\)"),
        ("own:one_unknown", {"width": 8}, r"'one_unknown' gives \(2, 8\).*\(2, 3\).*classes=3"),
        ("own:one_unknown", {}, r"'one_unknown' cannot be made from no arguments.*width"),
        ("own:options_only", {"num_classes": 8}, r"unknown option of model 'options_only': 'num_classes'"),
        ("own:Net", {"hiden": 8}, r"option of model 'Net': 'hiden'\. Did you mean 'hidden'"),
    ],
)
def test_own_factory_that_cannot_serve_is_refused(
    own_directory: Path, name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        named_model(name, (6,), 3, 0, **options)
    assert str(own_directory) not in sys.path


@pytest.mark.usefixtures("own_directory")
def test_own_model_that_cannot_take_the_input_is_refused_with_its_shape() -> None:
    with pytest.raises(ValueError, match=r"'classes_only' fails on an input of shape \(9,\)"):
        named_model("own:classes_only", (9,), 3, 0)


def test_a_module_that_is_built_is_copied_with_its_weights_and_mode() -> None:
    given = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    given[1].eval()
    copied = build_model(given, (6,), 3, 0)
    assert equal_weights(copied, given)
    with torch.no_grad():
        given[0].weight.zero_()
    assert not equal_weights(copied, given)
    assert not copied[1].training
    with pytest.raises(ValueError, match=r"model\.width is not an option of Sequential"):
        build_model(given, (6,), 3, 0, width=3)


def test_a_class_that_takes_other_arguments_is_refused_by_name() -> None:
    message = r"model 'Linear' cannot be made from \(input_shape, classes\), here \(6,\) and 3: .*an nn\.Module"
    with pytest.raises(ValueError, match=message):
        build_model(nn.Linear, (6,), 3, 0)


class Adapted(nn.Module):
    """A frozen linear map with a trained low-rank addition, and scores in `.logits`."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 10).requires_grad_(False)
        self.down, self.up = nn.Linear(64, 2, bias=False), nn.Linear(2, 10, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        x = x.flatten(1)
        return SimpleNamespace(logits=self.base(x) + self.up(self.down(x)))


@pytest.mark.parametrize("backend", ["sequential", "vectorized"])
def test_a_model_with_logits_and_an_adapter_sends_what_it_trains(tmp_path: Path, backend: Any) -> None:
    given = Adapted()
    small: Any = {"dataset": "digits", "clients": 4, "rounds": 2, "lr": 0.3, "out": tmp_path / backend}
    result = fedwcm.run("fedavg", model=given, backend=backend, participation=1.0, **small)
    trained = 64 * 2 + 2 * 10
    assert result.summary.parameters == trained
    assert result.history[-1].bytes_up == 4 * 4 * trained
    weights = result.model.state_dict()
    assert torch.equal(weights["base.weight"], given.base.weight)
    assert not torch.equal(weights["down.weight"], given.down.weight)
    assert "(148 of its 798 parameters are trained and sent)" in (tmp_path / backend / "report.html").read_text()
    loaded = fedwcm.load_model(tmp_path / backend, model=given)
    assert isinstance(loaded(torch.zeros(2, 1, 8, 8)), torch.Tensor)
    assert isinstance(given(torch.zeros(2, 64)), SimpleNamespace)  # one's own model stays as it is
