"""A run's folder says what made it, and a run does not go on with code that was edited."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedwcm
from fedwcm.experiment.environment import digest_sources
from fedwcm.experiment.folder import RunFolder

CODE = """
from dataclasses import dataclass
import fedwcm
from torch import nn

@dataclass(frozen=True, kw_only=True)
class Mine(fedwcm.Method):
    def direction(self, w, grad, c, ctx):
        return {factor} * grad(w), c

def my_model(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
DIGITS: Any = {"dataset": "digits", "clients": 5, "rounds": 2, "epochs": 1, "participation": 1.0}


def write_module(folder: Path, factor: float) -> None:
    (folder / "own_code.py").write_text(CODE.format(factor=factor), encoding="utf-8")
    sys.modules.pop("own_code", None)
    importlib.invalidate_caches()
    sys.dont_write_bytecode = True  # two versions within a second would share their bytecode


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_module(tmp_path, 1.0)
    return tmp_path


@pytest.mark.parametrize(
    "options", [{"method": "own_code:Mine"}, {"method": "fedavg", "model": "own_code:my_model"}]
)
def test_edited_code_is_refused(folder: Path, options: dict[str, str]) -> None:
    fedwcm.run(**options, **DIGITS, out="run")  # type: ignore[arg-type]
    fedwcm.run(**options, **DIGITS, out="run", resume=True)  # type: ignore[arg-type]
    write_module(folder, 0.5)
    with pytest.raises(ValueError, match=r"the code of own_code has changed since"):
        fedwcm.run(**options, **DIGITS, out="run", resume=True)  # type: ignore[arg-type]


def test_a_comparison_does_not_mix_two_versions_of_a_method(folder: Path) -> None:
    fedwcm.compare(["own_code:Mine"], seeds=[0], out="both", **DIGITS)
    write_module(folder, 0.5)
    with pytest.raises(ValueError, match=r"the code of own_code has changed since"):
        fedwcm.compare(["own_code:Mine"], seeds=[0, 1], out="both", **DIGITS)


def test_libraries_are_named_by_their_version_and_bases_are_digested(folder: Path) -> None:
    own_code = importlib.import_module("own_code")

    class Derived(own_code.Mine):  # type: ignore[misc, name-defined]
        pass

    assert set(digest_sources([Derived, fedwcm.Method, dict, None])) == {"own_code", __name__}


def test_a_run_names_what_made_it_and_each_process_that_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["site-packages/fedwcm/__main__.py", "run"])
    fedwcm.run("fedavg", **DIGITS, out=tmp_path / "run")
    held = RunFolder(tmp_path / "run")
    (first,) = held.environments()
    assert {"fedwcm", "python", "torch", "numpy"} <= set(first.versions)
    assert first.started <= (first.ended or "")
    assert first.command == "fedwcm run"
    assert (first.threads, first.jobs) == (torch.get_num_threads(), 1)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "made with" in page
    assert f"data {first.data}" in page
    assert len(first.data or "") == 16
    held.write_environments([replace(first, versions={**first.versions, "torch": "1.0"}, threads=99)])
    with pytest.warns(UserWarning, match="goes on with") as warned:
        fedwcm.run("fedavg", **{**DIGITS, "rounds": 3}, out=tmp_path / "run", resume=True)
    assert len(held.environments()) == 2
    texts = [str(each.message) for each in warned]
    assert any(re.search(r"goes on with torch .*, not 1\.0", text) for text in texts)
    assert any(re.search(r"goes on with threads of torch: \d+, not 99", text) for text in texts)


TYPED = """
from dataclasses import dataclass
import fedwcm
@dataclass(frozen=True, kw_only=True)
class Typed(fedwcm.Method):
    @property
    def scale(self):
        return {factor}
    def direction(self, w, grad, c, ctx):
        return self.scale * grad(w), c
"""


def test_each_part_of_code_that_is_of_no_module_is_digested() -> None:
    names: dict[str, Any] = {"__name__": None}
    exec("class One:\n    def f(self): return 1\nclass Two:\n    def f(self): return 2", names)
    digests = digest_sources([names["One"], names["Two"]])
    assert set(digests) == {"One", "Two"}
    assert digests["One"] != digests["Two"]


def test_a_lambda_may_stand_in_another_line(tmp_path: Path) -> None:
    options = {**DIGITS, "method": "fedavg", "out": tmp_path / "run"}
    names: dict[str, Any] = {"run": fedwcm.run, "module": importlib.import_module("torch.nn"), "options": options}
    model = "lambda shape, n: module.Sequential(module.Flatten(), module.Linear(64, n))"
    exec(f"run(model={model}, **options)", names)
    exec(f"run(**options, resume=True, model={model})", names)


def type_method(factor: float) -> type[fedwcm.Method]:
    """Return a class as a notebook or a console makes it: no file has its source."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(TYPED.format(factor=factor), names)
    typed: type[fedwcm.Method] = names["Typed"]
    return typed


def test_edited_code_that_has_no_file_is_refused(tmp_path: Path) -> None:
    fedwcm.run(type_method(1.0), **DIGITS, out=tmp_path / "run")
    fedwcm.run(type_method(1.0), **DIGITS, out=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"the code of __main__\.Typed has changed since"):
        fedwcm.run(type_method(0.5), **DIGITS, out=tmp_path / "run", resume=True)
