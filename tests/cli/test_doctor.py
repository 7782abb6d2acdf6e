"""`fedwcm doctor` passes what is right, and finds what is wrong, crashes or hangs."""

import faulthandler
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedwcm.cli import main
from fedwcm.diagnosis import backends, facts
from fedwcm.diagnosis.convolutions import Convolution, ConvolutionResult
from fedwcm.engine.backends.plan import can_fork


def outcomes(
    convolutions: Sequence[Convolution], *, threads: Sequence[int], timeout: float, problem: str
) -> list[ConvolutionResult]:
    return [ConvolutionResult(each, None, count, problem) for count in threads for each in convolutions]


pytestmark = pytest.mark.skipif(not can_fork(), reason="needs fork")


@pytest.mark.parametrize(
    "names",
    [("sequential", "vectorized", "parallel"), pytest.param(("ray",), marks=pytest.mark.slow)],
    ids=["one machine", "cluster"],
)
def test_every_backend_here_agrees_with_the_reference(
    names: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(names) <= set(backends.BACKENDS)
    monkeypatch.setattr(backends, "BACKENDS", names)
    if "ray" not in names:  # on one machine their processes are those of tests/models/test_convolutions.py
        monkeypatch.setattr(facts.convolutions, "check_convolutions", partial(outcomes, problem=""))  # type: ignore[attr-defined]
    assert main(["doctor"]) == 0
    output, aside = capfd.readouterr()
    assert "Warning" not in aside
    assert "inputs:" not in aside
    for name in ("fedwcm", "python", "torch", "instruction set", "devices", "cores", "/dev/shm", "fork"):
        assert f"{name}  " in output
    for tried in (*names, "bf16"):
        assert f"PASS  {tried} on cpu: differs from the reference by " in output
    assert "skipped  fp16 on cpu: " in output
    assert "PASS  Conv2d 3×3, stride 2, 4 to 8 channels, 2 threads: its gradients are right" in output
    for device in backends.DEVICES:  # type: ignore[attr-defined]
        if not backends.available(device):  # type: ignore[attr-defined]
            assert f"skipped  {names[0]} on {device}: no such device here" in output
            assert f"skipped  bf16 on {device}: no such device here" in output


def test_a_cluster_that_is_not_installed_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda _: None)
    assert "pip install 'fedwcm[ray]'" in backends._missing(backends.Trial("ray", "cpu"))


def test_a_wrong_convolution_fails_unless_models_go_round_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = partial(outcomes, problem="wrong by 1e-2")
    monkeypatch.setattr(facts.convolutions, "check_convolutions", wrong)  # type: ignore[attr-defined]
    *used, plain = facts.convolution_checks()
    assert {check.status for check in used} == {"FAIL"}
    assert plain.status == "avoided"


def test_a_run_that_computes_something_else_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, calls = backends.run, []  # type: ignore[attr-defined, var-annotated]

    def wrong(*arguments: Any, settings: dict[str, object], **options: Any) -> Any:
        return run(*arguments, settings={**settings, "local.lr": 0.11 if calls else 0.1}, **options)

    run_in_child = backends._run_in_child

    def counted(*arguments: Any, **options: Any) -> Any:
        result = run_in_child(*arguments, **options)
        calls.append(1)
        return result

    monkeypatch.setattr(backends, "run", wrong)
    monkeypatch.setattr(backends, "_run_in_child", counted)
    monkeypatch.setattr(backends, "DEVICES", ("cpu",))
    monkeypatch.setattr(backends, "BACKENDS", ("sequential",))
    monkeypatch.setattr(backends, "PRECISIONS", ())
    monkeypatch.setattr(facts, "convolution_checks", lambda: iter(()))
    assert main(["doctor"]) == 1
    assert "FAIL  sequential on cpu: differs from the reference by " in capsys.readouterr().out


def test_a_crash_and_a_hang_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def detail() -> str:
        [check] = backends.backend_checks()
        assert (check.name, check.status) == ("reference", "FAIL")
        return check.detail

    def crash(*_: Any, **__: Any) -> None:
        faulthandler.disable()
        os.abort()

    monkeypatch.setattr(backends, "run", crash)
    assert detail() == "the process was killed by SIGABRT"
    monkeypatch.setattr(backends, "run", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr(backends, "PATIENCE", 0.3)
    assert detail() == "no answer after 0.3 seconds"
    monkeypatch.setattr(backends, "run", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(backends, "PATIENCE", 20.0)
    assert detail() == "ZeroDivisionError: division by zero"


def test_a_model_that_is_not_a_number_anywhere_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = {"first": np.zeros(2), "second": np.zeros(2)}
    for spoilt in reference:
        model = {**reference, spoilt: np.array([0.0, np.nan])}
        monkeypatch.setattr(backends, "_run_in_child", lambda _, model=model: model)
        assert backends._try_run("cpu", backends.Trial("sequential", "cpu"), reference).status == "FAIL", spoilt
