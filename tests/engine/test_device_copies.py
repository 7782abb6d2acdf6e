"""Training on a device of its own: the host does not wait for it at every step, and devices never mix.

No GPU is needed: tensors on torch's device `meta` have shapes but no values. `StandIn` makes up the values that
the host reads, and counts; an operation that mixes them with tensors on the CPU fails as it does on a GPU.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedwcm.core.batch import InMemoryFederation
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method, TwoPhase
from fedwcm.engine.client import Broadcast, ClientTrainer
from fedwcm.engine.evaluate import evaluate
from fedwcm.engine.network import Network
from fedwcm.engine.options import Aggregation, ServerOptions
from fedwcm.losses import LOSSES
from fedwcm.losses.distillation import Distillation
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg
from fedwcm.teacher import Teacher

from ..factories import BY_STEPS, CLASSES, Scripted, clusters, make_rounds, make_trainer, mlp

DATA = clusters()
FEDERATION = InMemoryFederation(torch.from_numpy(DATA.inputs).to("meta"), DATA.labels, DATA.parts, CLASSES)
NEED_A_TEACHER = {"clip2fl", "distillation"}
CHEAP: dict[str, dict[str, Any]] = {"creff": {"features": 4, "match_steps": 2, "retrain_epochs": 2}}


CROSSING = {
    torch.ops.aten.copy_.default,
    torch.ops.aten._to_copy.default,
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put_.default,
}
"""Operations that take tensors of two devices on a GPU, too: copies, and places given by the host."""


class StandIn(TorchDispatchMode):
    """Makes `meta` a device whose values can be read, all of them one, and counts what crosses its border."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def __torch_dispatch__(
        self, func: Any, types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func not in CROSSING:
            tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
            devices = {tensor.device.type for tensor in tensors if tensor.dim()}
            if len(devices) > 1:
                raise RuntimeError(f"expected all tensors on one device, but {func} mixes {sorted(devices)}")
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.copies += 1
            return torch.ones((), dtype=args[0].dtype).item()
        if func is torch.ops.aten.bincount.default and args[0].is_meta:
            self.copies += 1  # the host has to know the length of the result
            return torch.empty(args[2], dtype=torch.int64, device="meta")
        if func is torch.ops.aten.nonzero.default and args[0].is_meta:
            self.copies += 1
            return torch.ones(args[0].shape).nonzero().to("meta")
        if func is torch.ops.aten._to_copy.default:
            source, target = args[0].device, torch.device(options.get("device") or args[0].device)
            self.copies += source != target
            if source.type == "meta" and target.type == "cpu":
                return torch.ones(args[0].shape, dtype=options.get("dtype") or args[0].dtype)
        return func(*args, **options)


def trainer(method: Method, loss: Loss | None, stacked: bool, **length: Any) -> ClientTrainer:
    made = make_trainer(method, FEDERATION, mlp(), stacked=stacked, loss=loss, **length)
    return replace(made, forward=type(made.forward)(Network(mlp(), "meta")))  # type: ignore[call-arg]


def copies(method: Method, loss: Loss | None, stacked: bool, **length: Any) -> int:
    """What crosses the border while a block of clients trains."""
    training = trainer(method, loss, stacked, **length)
    x, buffers = training.forward.network.initial()
    message = method.broadcast(method.init(x, training.population))
    ids = np.array(BY_STEPS if stacked else BY_STEPS[:1])
    shards = [FEDERATION.shard(int(client)) for client in ids]
    state = training.initial_state(training.clients(ids, shards), x, buffers)
    device = StandIn()
    with device:
        training.train(ids, shards, state, Broadcast(2, x, buffers, message, 0.1))
    return device.copies


def grows(method: Method, loss: Loss | None, stacked: bool) -> bool:
    few, many = (copies(method, loss, stacked, epochs=None, steps=steps) for steps in (2, 4))
    return few != many


@pytest.mark.parametrize(("method", "stacked"), [("fedwcm", True), ("scaffold", False), ("fedwmsam", True)])
def test_the_host_exchanges_nothing_with_the_device_at_a_step(method: str, stacked: bool) -> None:
    assert not grows(METHODS[method](), None, stacked)


def test_short_last_batches_and_clients_that_are_done_exchange_nothing_either() -> None:
    once, twice = (copies(FedAvg(), LOSSES["prior_ce"](), True, epochs=epochs) for epochs in (1, 2))
    assert once == twice


@pytest.mark.parametrize("loss", ["prior_ce", "ldam"])
def test_no_loss_exchanges_anything_with_the_device_at_a_step(loss: str) -> None:
    assert not grows(FedAvg(), LOSSES[loss](), stacked=True)


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True], ids=["one by one", "stacked"])
def test_neither_a_method_nor_a_loss_exchanges_anything_with_the_device_at_a_step(stacked: bool) -> None:
    one_phase = {name for name, method in METHODS.items() if not issubclass(method, TwoPhase)}
    assert not [name for name in one_phase - NEED_A_TEACHER if grows(METHODS[name](), None, stacked)]
    assert not [name for name in LOSSES.keys() - NEED_A_TEACHER if grows(FedAvg(), LOSSES[name](), stacked)]


def test_a_teacher_is_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, samples = tmp_path / "teacher.safetensors", len(DATA.labels)
    Teacher(torch.zeros(samples, CLASSES), torch.zeros(CLASSES, 2), torch.from_numpy(DATA.labels)).write(file)
    monkeypatch.setattr(Teacher, "require_samples", lambda *_: None)  # would read made-up numbers
    loss = Distillation(teacher=str(file))
    first, second = (copies(FedAvg(), loss, True, epochs=None, steps=steps) for steps in (2, 4))
    assert second == first - 1


@pytest.mark.parametrize(
    "stacked", [pytest.param(False, marks=pytest.mark.slow), True], ids=["one by one", "stacked"]
)
def test_rounds_of_every_method_and_loss_keep_to_one_device(stacked: bool) -> None:
    cases: dict[str, tuple[Method, Loss | None, Aggregation]] = {
        **{
            name: (METHODS[name](**CHEAP.get(name, {})), None, Aggregation())
            for name in METHODS.keys() - NEED_A_TEACHER
        },
        **{name: (FedAvg(), LOSSES[name](), Aggregation()) for name in LOSSES.keys() - NEED_A_TEACHER},
        "median": (FedAvg(), None, Aggregation(rule="median", max_norm=1.0)),
    }
    for name, (method, loss, aggregation) in cases.items():
        training = trainer(method, loss, stacked, epochs=None, steps=1)
        rounds = make_rounds(
            training,
            FEDERATION,
            block=5 if stacked else 1,
            participation=Scripted([[0, 1, 2] if stacked else [0]] * 3),
            aggregation=aggregation,
        )
        rounds = replace(rounds, server=ServerOptions(ema=0.5))
        with StandIn():
            state = rounds.start(*training.forward.network.initial())
            for number in (1, 2):  # in round 0 losses are tried, and would be found wrong: all values are one
                state, _ = rounds.step(replace(state, round=number))
        assert state.x.is_meta, name
        assert state.average["x"].is_meta, name


class Mixed(FedAvg):
    """Adds a vector of the host to one of the device."""

    def direction(self, w: Tensor, grad: Any, c: Any, ctx: Any) -> Any:
        return grad(w) + torch.zeros(w.shape[-1]), c


class Synchronised(FedAvg):
    """Reads a number from the device at every step."""

    def direction(self, w: Tensor, grad: Any, c: Any, ctx: Any) -> Any:
        return grad(w) * float(w.detach().norm()), c


@pytest.mark.parametrize("stacked", [False, True], ids=["one by one", "stacked"])
def test_a_method_that_mixes_devices_or_waits_for_one_is_found(stacked: bool) -> None:
    with pytest.raises(RuntimeError, match="device"):
        copies(Mixed(), None, stacked, epochs=None, steps=1)
    assert grows(Synchronised(), None, stacked)


def test_an_evaluation_reads_the_device_a_fixed_number_of_times() -> None:
    network = Network(mlp(), "meta")
    x, buffers = network.initial()
    found = []
    for samples in (10, 5000):
        with StandIn() as device:
            inputs: Tensor = torch.zeros(samples, DATA.inputs.shape[1], dtype=torch.float64, device="meta")
            labels = torch.zeros(samples, dtype=torch.int64, device="meta")
            evaluate(network, x, buffers, inputs, labels, CLASSES)
        found.append(device.copies)
    assert found[0] == found[1]
