"""`fedwcm doctor` passes what is right, and finds what is wrong, crashes or hangs."""

import faulthandler
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedwcm import machine
from fedwcm.cli import main
from fedwcm.engine.backends.plan import can_fork
from fedwcm.models.convolution_check import Convolution, ConvolutionResult

pytestmark = pytest.mark.skipif(not can_fork(), reason="needs fork")


@pytest.mark.parametrize(
    "backends",
    [("sequential", "vectorized", "parallel"), pytest.param(("ray",), marks=pytest.mark.slow)],
    ids=["one machine", "cluster"],
)
def test_every_backend_here_agrees_with_the_reference(
    backends: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(backends) <= set(machine.BACKENDS)
    monkeypatch.setattr(machine, "BACKENDS", backends)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for name in ("fedwcm", "python", "torch", "instruction set", "devices", "cores", "/dev/shm", "fork"):
        assert f"{name}  " in said
    for tried in (*backends, "bf16"):
        assert f"PASS  {tried} on cpu: differs from the reference by " in said
    assert "skipped  fp16 on cpu: " in said
    assert "PASS  Conv2d 3×3, stride 2, 4 to 8 channels, 2 threads: its gradients are right" in said
    for device in machine.DEVICES:
        if not machine.available(device):
            assert f"skipped  {backends[0]} on {device}: no such device here" in said
            assert f"skipped  bf16 on {device}: no such device here" in said


def test_a_cluster_that_is_not_installed_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    assert "pip install 'fedwcm[ray]'" in machine._missing(machine.Trial("ray", "cpu"))


def test_a_wrong_convolution_fails_unless_models_go_round_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcomes(convolutions: Sequence[Convolution], **_: object) -> list[ConvolutionResult]:
        return [ConvolutionResult(each, None, 1, "wrong by 1e-2") for each in convolutions]

    monkeypatch.setattr(machine.convolution_check, "check_convolutions", outcomes)
    *used, plain = machine.check_convolutions()
    assert {check.status for check in used} == {"FAIL"}
    assert plain.status == "avoided"


def test_a_run_that_computes_something_else_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, calls = machine.run, []

    def wrong(*arguments: Any, settings: dict[str, object], **options: Any) -> Any:
        return run(*arguments, settings={**settings, "local.lr": 0.11 if calls else 0.1}, **options)

    played = machine._run_in_child

    def counted(*arguments: Any, **options: Any) -> Any:
        result = played(*arguments, **options)
        calls.append(1)
        return result

    monkeypatch.setattr(machine, "run", wrong)
    monkeypatch.setattr(machine, "_run_in_child", counted)
    monkeypatch.setattr(machine, "DEVICES", ("cpu",))
    monkeypatch.setattr(machine, "BACKENDS", ("sequential",))
    monkeypatch.setattr(machine, "PRECISIONS", ())
    monkeypatch.setattr(machine, "check_convolutions", lambda: iter(()))
    assert main(["doctor"]) == 1
    assert "FAIL  sequential on cpu: differs from the reference by " in capsys.readouterr().out


def test_a_crash_and_a_hang_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def detail() -> str:
        [check] = machine.check_backends()
        assert (check.name, check.status) == ("reference", "FAIL")
        return check.detail

    def crash(*_: Any, **__: Any) -> None:
        faulthandler.disable()
        os.abort()

    monkeypatch.setattr(machine, "run", crash)
    assert detail() == "the process was killed by SIGABRT"
    monkeypatch.setattr(machine, "run", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr(machine, "PATIENCE", 0.3)
    assert detail() == "no answer after 0.3 seconds"
    monkeypatch.setattr(machine, "run", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(machine, "PATIENCE", 20.0)
    assert detail() == "ZeroDivisionError: division by zero"


def test_a_model_that_is_not_a_number_anywhere_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = {"first": np.zeros(2), "second": np.zeros(2)}
    for spoilt in reference:
        played = {**reference, spoilt: np.array([0.0, np.nan])}
        monkeypatch.setattr(machine, "_run_in_child", lambda _, told=played: told)
        assert machine._tried("cpu", machine.Trial("sequential", "cpu"), reference).status == "FAIL", spoilt
