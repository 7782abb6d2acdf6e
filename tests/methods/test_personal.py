"""Models of the clients' own: how they are trained, kept and measured."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.core.types import Layout
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.methods.ditto import Ditto
from fedwcm.methods.fedper import FedPer
from fedwcm.methods.fedrep import FedRep
from fedwcm.testing import _engine, _run_rounds, _start

RUN: Any = {"model": "mlp", "rounds": 12, "epochs": 2, "lr": 0.2, "participation": 1.0, "eval_every": 12}


def disagreeing() -> dict[str, Any]:
    """Clients of whom half call the classes by each other's names."""
    rng = np.random.default_rng(0)
    y, client = np.arange(480) % 2, np.arange(480) // 60
    x = rng.normal(size=(480, 5)) + 3.0 * y[:, None]
    y = np.where(client % 2, 1 - y, y)
    held_out = np.arange(480) % 3 == 0
    parts = {"train": ~held_out, "test": held_out}
    return {
        f"{key}_{part}": v[rows]
        for part, rows in parts.items()
        for key, v in (("x", x), ("y", y), ("client", client))
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("personal") / "rows.npz"
    np.savez(path, **disagreeing())
    return path


OWN = {"ditto": 1.0, "pfedme": 1.0, "fedproto": 1.0, "fedper": 0.05, "fedrep[head_share=0.5]": 0.05}
"""How much of the model stays with a client, at most."""


@pytest.mark.parametrize("method", OWN)
def test_clients_are_measured_with_their_own_models(rows: Path, tmp_path: Path, method: str) -> None:
    result = fedwcm.run(method, dataset=str(rows), out=tmp_path, **RUN)
    last = result.history[-1]
    assert last.test_accuracy is not None
    assert last.test_accuracy < 0.7  # one model cannot please both halves
    assert last.client_mean is not None
    assert last.client_mean > 0.9
    assert result.summary.client_accuracy is not None
    assert np.mean(list(result.summary.client_accuracy.values())) == pytest.approx(last.client_mean)
    states = fedwcm.client_state(tmp_path)
    assert sorted(states) == [str(k) for k in range(8)]
    kept = len(states["3"]["own"])
    assert (
        kept == result.summary.parameters if OWN[method] == 1.0 else kept < OWN[method] * result.summary.parameters
    )


def test_a_method_without_personal_models_has_no_client_state(rows: Path, tmp_path: Path) -> None:
    result = fedwcm.run("fedavg", dataset=str(rows), out=tmp_path, **{**RUN, "rounds": 1})
    assert result.history[-1].client_mean is not None
    assert fedwcm.client_state(tmp_path) == {}
    with pytest.raises(FileNotFoundError, match=r"holds no run: there is no checkpoints in it; there are runs"):
        fedwcm.client_state(tmp_path.parent)


def test_dittos_own_models_are_pulled_to_the_model_of_all() -> None:
    w, own, x = (torch.from_numpy(np.random.default_rng(k).normal(size=(3, 4))) for k in range(3))
    ctx: Any = SimpleNamespace(x=x[0], lr=torch.tensor([[0.1], [0.2], [0.3]]))
    grad: Any = lambda at: at**3  # noqa: E731
    v, c = Ditto(lam=0.7).direction(w, grad, {"own": own}, ctx)
    assert torch.equal(v, w**3)
    expected = own.numpy() - ctx.lr.numpy() * (own.numpy() ** 3 + 0.7 * (own.numpy() - x[0].numpy()))
    np.testing.assert_allclose(c["own"].numpy(), expected)
    assert Ditto().eval_clients(x[0], {}, c, Layout(())) is c["own"]


@pytest.mark.parametrize("method", [FedPer(), FedRep(head_share=0.5)])
def test_the_head_stays_with_the_client(method: FedPer) -> None:
    engine = _engine(method, CrossEntropy())
    before, after = _start(engine), _run_rounds(engine, 2)
    layout = engine.trainer.forward.network.layout
    (weight, *_), ids = layout.head_slices, engine.store.visited_clients()
    assert torch.equal(weight.of(before.x), weight.of(after.x))
    assert not torch.equal(before.x, after.x)
    c = engine.store.read(ids, torch.device("cpu"))
    models = method.eval_clients(after.x, after.method, c, layout)
    assert torch.equal(models[:, : weight.start], after.x[: weight.start].expand(len(ids), -1))
    assert torch.equal(models[:, weight.start :], c["own"])
    assert len(weight.of(models).unique(dim=0)) == len(ids)


def test_fedrep_moves_the_head_first_and_then_the_rest() -> None:
    ends = {}
    for share in (0.0, 0.999, 1.0):
        engine = _engine(FedRep(head_share=share), CrossEntropy())
        start, end = _start(engine), _run_rounds(engine, 1)
        own = engine.store.read(engine.store.visited_clients(), torch.device("cpu"))["own"]
        weight = engine.trainer.forward.network.layout.head_slices[0]
        ends[share] = bool((own != start.x[weight.start :]).any()), not torch.equal(start.x, end.x)
    assert ends == {0.0: (False, True), 0.999: (True, True), 1.0: (True, False)}  # of few steps, the body has one
