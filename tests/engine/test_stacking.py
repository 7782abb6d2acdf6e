"""Models that cannot be stacked train one client at a time, and the log says why."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedwcm
from fedwcm.engine.backends.plan import choose, stacking_problem
from fedwcm.engine.fast.linear_stack import linear_layers
from fedwcm.engine.forward import SequentialForward
from fedwcm.engine.network import Network

STEPS, CHANNELS, CLASSES = 5, 3, 3


class Recurrent(nn.Module):
    """The last step of a recurrent layer."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = layer(CHANNELS, 6, batch_first=True)  # type: ignore[arg-type, call-arg]
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(x)[0][:, -1])
        return logits


class Bag(nn.Module):
    """A layer that torch stacks only by running it for one model after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(9, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.bag(x[..., 0].abs().long() % 9))
        return logits


class Cached(nn.Module):
    """Computes with the parameters that it saw first, whatever it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(CHANNELS, CLASSES)
        self.held = [self.head.weight]

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1] @ self.held[0].T + self.head.bias


class Attention(nn.Module):
    """A model that can be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(CHANNELS, 1, batch_first=True), nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.mix(x, x, x)[0].mean(dim=1))
        return logits


class Positions(nn.Module):
    """A table that is added to the inputs: saved with the model, or not."""

    def __init__(self, saved: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(CHANNELS, 6), nn.GELU()), nn.Linear(6, CLASSES)
        self.table: Tensor
        self.register_buffer("table", torch.linspace(0, 1, STEPS)[:, None], persistent=saved)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x + self.table).mean(dim=1))
        return logits


class Signal(nn.Module):
    """A small convolutional model of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv1d(CHANNELS, 4, 3), nn.ReLU()), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x.transpose(1, 2)).mean(dim=2))
        return logits


class Crowded(nn.Module):
    """Scores samples a little higher in larger batches, so that it feels the padding of a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(STEPS * CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1)) * (1 + 0.01 * len(x))
        return logits


def idle_layers() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(STEPS * CHANNELS, 6),
        nn.Dropout(0.0),
        nn.Identity(),
        nn.ReLU(),
        nn.Linear(6, CLASSES),
    )


def sequences() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=90)
    inputs = rng.normal(size=(90, STEPS, CHANNELS)) + np.eye(CLASSES)[labels][:, None]
    return inputs[:60], labels[:60], inputs[60:], labels[60:]


def trained(module: nn.Module, backend: str, method: str = "fedcm") -> fedwcm.Result:
    return fedwcm.run(
        method,
        dataset=sequences(),
        model=module,
        clients=4,
        participation=1.0,
        rounds=2,
        epochs=1,
        batch_size=8,
        backend=backend,  # type: ignore[arg-type]
        settings={"run.workers": {"auto": 1, "parallel": 2}.get(backend, 0)},
    )


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("backend", ["auto", "parallel"])
def test_recurrent_models_train_and_the_log_says_that_clients_are_not_stacked(
    layer: type[nn.RNNBase], backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = Recurrent(layer)
    with caplog.at_level(logging.INFO, "fedwcm"):
        result = trained(module, backend)
    assert result.summary.backend == ("sequential" if backend == "auto" else "parallel")
    assert "clients train one at a time" in caplog.text
    assert f"aten::{layer.__name__.lower()}" in caplog.text
    expected = trained(module, "sequential").model.state_dict()
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
        assert not torch.equal(value, module.state_dict()[name]), name


def test_a_recurrent_model_trains_with_methods_that_need_more_than_a_gradient() -> None:
    for method in ("mime", "fedsam", "creff"):
        assert trained(Recurrent(nn.GRU), "auto", method).summary.backend == "sequential"


def test_stacking_asked_for_by_name_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ValueError, match=r"run\.backend = 'vectorized' .* auto, sequential or parallel.*aten::lstm"
    ):
        trained(Recurrent(nn.LSTM), "vectorized")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("module", "reason"), [(Bag, "embedding_bag"), (Cached, "differ by"), (Crowded, "differ by")]
)
def test_models_are_not_stacked_if_that_is_slow_or_wrong(module: type[nn.Module], reason: str) -> None:
    sample = torch.randn(2, STEPS, CHANNELS)
    plan = choose("auto", 1, Network(module()), 4, sample)
    assert (plan.name, plan.stacked) == ("sequential", False)
    assert reason in plan.note


def test_a_model_that_can_be_stacked_still_is() -> None:
    network, sample = Network(Attention()), torch.randn(2, STEPS, CHANNELS)
    before = network.initial()[0]
    assert stacking_problem(network, sample) is None
    assert torch.equal(network.initial()[0], before)
    plan = choose("auto", 1, network, 4, sample)
    assert (plan.name, plan.stacked, plan.note) == ("vectorized", True, "")


@pytest.mark.parametrize("make", [idle_layers, Signal, lambda: Positions(saved=False)])
def test_idle_dropout_fixed_tables_and_conv1d_do_not_keep_models_apart(make: Any) -> None:
    module, sample = make(), torch.randn(2, STEPS, CHANNELS)
    assert choose("auto", 1, Network(module), 4, sample).stacked
    assert (linear_layers(Network(module)) is not None) == isinstance(module, nn.Sequential)
    alone, together = (trained(module, backend).model.state_dict() for backend in ("sequential", "auto"))
    for name, value in together.items():
        torch.testing.assert_close(value, alone[name], rtol=1e-5, atol=1e-6)
        assert not torch.equal(value, module.state_dict()[name]), name


def test_processes_share_the_convolutions_of_sequences_in_stacked_blocks() -> None:
    plan = choose("auto", 2, Network(Signal()), 4)
    assert (plan.name, plan.stacked, plan.block) == ("parallel", True, 2)


def test_what_is_not_saved_with_a_model_does_not_travel() -> None:
    saved, fixed = Positions(saved=True), Positions(saved=False)
    fixed.load_state_dict(saved.state_dict(), strict=False)
    runs = [trained(module, "sequential") for module in (saved, fixed)]
    heads = [run.model.state_dict()["head.weight"] for run in runs]
    assert torch.equal(*heads)
    down = [run.history[-1].bytes_down for run in runs]
    assert down[0] - down[1] == 4 * 4 * STEPS  # four clients, a float32 for every position
    assert Network(fixed).initial()[1].numel() == 0


def test_a_fixed_table_that_a_model_writes_to_is_as_before_for_the_next_client() -> None:
    class Shifting(Positions):
        def forward(self, x: Tensor) -> Tensor:
            self.table += 1.0
            return super().forward(x)

    forward = SequentialForward(Network(Shifting(saved=False)))
    x, buffers = forward.network.initial()
    for _ in range(2):
        forward.start(x, buffers)
        forward(x[None], torch.zeros(1, 2, STEPS, CHANNELS), track=True)
        assert float(next(forward.network.module.buffers())[0]) == 1.0


def scaled() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(CHANNELS, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    module[0].register_forward_hook(lambda _, __, output: 0.1 * output)
    return module


def frozen_by_hook() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(CHANNELS, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    module[0].weight.register_hook(torch.zeros_like)
    return module


def replaced_forward() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(CHANNELS, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    plain = module[0].forward
    module[0].forward = lambda x: 0.1 * plain(x)
    return module


@pytest.mark.parametrize("make", [scaled, frozen_by_hook, replaced_forward])
def test_hooks_of_a_stack_of_linear_layers_are_obeyed_by_every_backend(make: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, CHANNELS)).astype(np.float32), rng.integers(0, CLASSES, 60)
    options = {"clients": 3, "beta": 1.0, "participation": 1.0, "rounds": 2, "epochs": 2}

    def weights(rate: float, backend: str) -> Tensor:
        made: Any = {"model": lambda input_shape, classes: make(), "lr": rate, "backend": backend, **options}
        return fedwcm.run("fedavg", dataset=(x, y), batch_size=10, **made).model.state_dict()["0.weight"]

    alone = weights(0.1, "sequential")
    torch.testing.assert_close(alone, weights(0.1, "auto"), rtol=1e-4, atol=1e-5)
    assert torch.equal(alone, weights(0.2, "sequential")) == (make is frozen_by_hook)


@pytest.mark.parametrize(
    ("make", "lost"), [(frozen_by_hook, "hook of 0.weight"), (replaced_forward, "forward of 0")]
)
def test_what_the_copy_of_a_module_would_lose_is_refused(make: Any, lost: str) -> None:
    with pytest.raises(ValueError, match=f"would lose the .*{lost}: pass a function that makes the model"):
        fedwcm.run("fedavg", dataset="digits", model=make(), clients=2)


def test_gradient_hooks_are_called_for_every_client_whatever_the_backend() -> None:
    calls: dict[str, int] = {}
    for backend in ("sequential", "auto"):

        def watched(input_shape: tuple[int, ...], classes: int, backend: str = backend) -> nn.Module:
            def count(_: Tensor) -> None:
                calls[backend] = calls.get(backend, 0) + 1

            module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, classes))
            module[1].weight.register_hook(count)
            return module

        small: Any = {"clients": 3, "participation": 1.0, "rounds": 1, "steps": 2, "beta": 1.0}
        fedwcm.run(
            "fedavg",
            dataset="digits",
            model=watched,
            backend=backend,
            settings={"run.workers": int(backend == "auto")},
            **small,
        )
    assert calls["auto"] == calls["sequential"] == 6


def test_a_hook_on_the_head_is_obeyed_where_a_loss_calls_the_head() -> None:
    def tripled(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))
        module[3].register_forward_hook(lambda _, __, output: 3 * output)
        return module

    small: Any = {"clients": 3, "participation": 1.0, "rounds": 1, "epochs": 1, "beta": 1.0, "loss": "balancefl"}
    one, other = (
        fedwcm.run("fedavg", dataset="digits", model=tripled, backend=backend, **small).model.state_dict()
        for backend in ("sequential", "vectorized")
    )
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=1e-4, atol=1e-5)


def test_the_model_of_a_run_is_as_fast_in_the_next() -> None:
    ended = fedwcm.run("fedavg", dataset="digits", clients=2, rounds=1, model="mlp[hidden=[4]]", participation=1.0)
    assert not Network(ended.model).has_hooks
