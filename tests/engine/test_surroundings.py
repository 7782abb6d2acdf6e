"""A run does not depend on the torch modes, the process or the kind of parameters that surround it."""

import logging
import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedwcm
from fedwcm.core.method import Method
from fedwcm.core.types import Context, Report, State, Vec

Y = np.arange(120) % 3
X = (np.random.default_rng(0).normal(size=(120, 5)) + np.eye(5)[Y]).astype(np.float32)
OWNED = {"x": X, "y": Y, "client": np.array(["a", "b", "c", "d"]).repeat(30)}


def losses(method: Any = "fedcm", **options: Any) -> list[tuple[float | None, float | None]]:
    run = fedwcm.run(method, dataset=(X, Y), **{"clients": 4, "participation": 1.0, "rounds": 2, **options})
    return [(record.train_loss, record.test_loss) for record in run.history]


MODES: list[Callable[[], AbstractContextManager[object]]] = [
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", torch.bfloat16),
]


@pytest.mark.parametrize("mode", MODES)
def test_ambient_modes_change_nothing(mode: Callable[[], AbstractContextManager[object]]) -> None:
    plain = losses()
    with mode():
        assert losses() == plain


def test_another_default_dtype_changes_nothing_and_is_put_back() -> None:
    plain = losses()
    torch.set_default_dtype(torch.float64)
    try:
        assert losses() == plain
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def uses(folder: Path) -> list[float]:
    """What a trained model is used for, as numbers."""
    weights = next(fedwcm.load_model(folder).parameters())
    assert weights.dtype == torch.float32
    assert not weights.is_inference()
    fedwcm.export(folder, "torchscript", folder / "model.pt")
    return [
        fedwcm.calibrate(folder, OWNED),
        fedwcm.choose_operating_point(folder, "recall:0=0.9", OWNED)["0"],
        fedwcm.evaluate(folder, OWNED).test_loss,
        fedwcm.predict(folder, X).probabilities[0, 0].item(),
        fedwcm.personalize(folder, OWNED).after["client_mean"],
    ]


@pytest.mark.parametrize("mode", [*MODES, float64])
def test_ambient_modes_change_nothing_that_a_model_is_used_for(
    mode: Callable[[], AbstractContextManager[object]], tmp_path: Path
) -> None:
    fedwcm.run(dataset=OWNED, participation=1.0, rounds=2, val_fraction=0.2, out=tmp_path / "run", report=False)
    shutil.copytree(tmp_path / "run", tmp_path / "again")  # calibrated but once
    plain = uses(tmp_path / "run")
    with mode():
        assert uses(tmp_path / "again") == pytest.approx(plain, rel=1e-5)


class Tempered(nn.Module):
    """A linear model with a learned temperature, which has no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.head = nn.Parameter(torch.tensor(2.0)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x) * self.temperature
        return scores


@pytest.mark.parametrize("method", ["fedavg", "fedsam", "scaffold"])
def test_a_parameter_without_dimensions_trains_alike_on_every_backend(method: str) -> None:
    runs = [
        losses(method, model=lambda input_shape, classes: Tempered(), backend=backend)
        for backend in ("sequential", "vectorized", "parallel")
    ]
    np.testing.assert_allclose(runs[1:], [runs[0]] * 2, rtol=1e-5)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class OneNumber(Method):
    """Reports one number for the whole block, or keeps a row too few."""

    what: str = "report"

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        if self.what == "upload":
            return {"delta": upload["delta"].mean(dim=0)}, report, c
        return upload, {"norm": np.float64(1.0)}, c  # type: ignore[dict-item]


@pytest.mark.parametrize("backend", ["sequential", "vectorized"])
@pytest.mark.parametrize("what", ["report", "upload"])
def test_a_value_that_is_not_per_client_is_refused_by_name(what: str, backend: str) -> None:
    with pytest.raises(ValueError, match=rf"OneNumber.finish returned .* in the {what}: it must be"):
        losses(OneNumber(what=what), backend=backend)


def _in_pool(_: int) -> list[tuple[float | None, float | None]]:
    return losses(model=lambda input_shape, classes: nn.Sequential(nn.Linear(5, 3), nn.Softsign()))


def test_a_default_run_works_in_a_pool() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (inside,) = pool.map(_in_pool, [0])
    np.testing.assert_allclose(inside, _in_pool(0), rtol=1e-5)  # type: ignore[arg-type]


def test_a_daemonic_process_is_given_a_backend_without_children(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    monkeypatch.setattr("fedwcm.engine.backends.plan.usable_cores", lambda: 2)
    torch.set_num_threads(2)
    with caplog.at_level(logging.INFO, "fedwcm"):
        losses(model="mlp", settings={"model.hidden": [600, 600]})
    assert "may have no children" in caplog.text
    assert torch.get_num_threads() == 1  # the threads of a parent that was forked are not there
    with pytest.raises(ValueError, match=r"run\.backend = 'parallel'.*may have no children"):
        losses(backend="parallel")


@pytest.mark.parametrize("last", [nn.Softmax(dim=1), nn.LogSoftmax(dim=1)])
def test_a_model_that_ends_in_softmax_is_warned_of(last: nn.Module) -> None:
    with pytest.warns(UserWarning, match=f"final {type(last).__name__}: losses take scores"):
        losses(model=nn.Sequential(nn.Linear(5, 3), last))


def test_a_model_of_another_float_type_is_told_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"torch\.float64: allowed is torch\.float32.*model\.float\(\)"):
        losses(model=nn.Linear(5, 3).double())
