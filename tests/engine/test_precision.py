"""`run.precision`: clients compute in 16 bits, everything else stays in float32."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwcm.config.settings import from_settings
from fedwcm.core.batch import InMemoryFederation, Outputs
from fedwcm.engine.evaluate import evaluate
from fedwcm.engine.fast.linear_stack import LinearStack
from fedwcm.engine.forward import Forward, SequentialForward, VmapForward
from fedwcm.engine.network import Network
from fedwcm.engine.precision import Precision
from fedwcm.experiment.build import build
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.rounds import choose_kernels
from fedwcm.experiment.run import Run
from fedwcm.experiment.runner import Runner
from fedwcm.methods.fedavg import FedAvg

from ..factories import (
    CLASSES,
    FEATURES,
    IMAGE,
    clusters,
    conv_batchnorm,
    make_rounds,
    make_trainer,
    mlp,
    run_rounds,
)

HALF_A_PERCENT = 2.0**-8
"""Relative rounding error of bf16."""


class Witness(nn.Linear):
    """A layer that notes what it computes in."""

    seen: torch.dtype | None = None

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        self.seen = output.dtype
        return output


def settings(**changed: object) -> dict[str, object]:
    return {
        "data.dataset": "digits",
        "partition.clients": 6,
        "partition.beta": 1.0,
        "model.name": "mlp",
        "model.hidden": [32],
        "method.name": "scaffold",
        "local.epochs": 2,
        "local.batch_size": 20,
        "participation.fraction": 1.0,
        "run.rounds": 2,
        "run.device": "cpu",
        "run.workers": 2 if changed.get("run__backend", "auto") in ("auto", "parallel") else 0,
        **{key.replace("__", "."): value for key, value in changed.items()},
    }


@cache
def finished(**changed: object) -> Run:
    return Runner(build(from_settings(settings(**changed))), None, Silent()).run()


def vector(finished: Run) -> Tensor:
    return torch.cat([value.reshape(-1) for value in finished.model.values()])


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_only_training_is_in_the_precision_of_the_run(name: Any) -> None:
    module = nn.Sequential(Witness(FEATURES, CLASSES))
    network = Network(module, precision=Precision(name))
    x, buffers = network.initial()
    inputs = torch.randn(1, 5, FEATURES)
    outputs = SequentialForward(network)(x[None], inputs, track=True)
    assert module[0].seen == Precision(name).dtype
    assert outputs.logits.dtype == torch.float32
    evaluate(network, x, buffers, inputs[0], torch.zeros(5, dtype=torch.int64), CLASSES)
    assert module[0].seen == torch.float32


@pytest.mark.parametrize("backend", ["vectorized", "parallel"])
def test_backends_agree_up_to_the_rounding_of_bf16(backend: str) -> None:
    one, other, exact = (
        vector(finished(run__backend=name, run__precision=precision))
        for name, precision in (("sequential", "bf16"), (backend, "bf16"), ("sequential", "fp32"))
    )
    assert not torch.equal(one, exact)
    torch.testing.assert_close(other, one, rtol=0, atol=HALF_A_PERCENT * float(exact.abs().max()))


def test_processes_change_not_a_bit_in_bf16() -> None:
    data, played = clusters(shape=IMAGE), []
    federation = InMemoryFederation(torch.from_numpy(data.inputs).float(), data.labels, data.parts, CLASSES)
    for workers in (1, 2):
        training = make_trainer(FedAvg(), federation, nn.Linear(1, 1))
        network = Network(conv_batchnorm().float(), precision=Precision("bf16"))
        training = replace(training, forward=SequentialForward(network))
        *_, (state, _) = run_rounds(make_rounds(training, federation, workers=workers), 2)
        played.append(state)
    one, other = played
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.buffers, other.buffers)


def test_models_uploads_and_state_stay_in_float32() -> None:
    experiment = build(from_settings(settings(run__precision="bf16")))
    rounds = experiment.rounds
    state, _ = rounds.step(rounds.start(experiment.x, experiment.buffers))
    kept = rounds.store.read(np.arange(6), torch.device("cpu"))
    assert kept.keys() == {"control"}
    assert {value.dtype for value in (state.x, *state.method.values(), *kept.values())} == {torch.float32}
    rounds.backend.close()


def test_accuracy_is_that_of_float32_within_the_noise_of_a_seed() -> None:
    found = {
        precision: [
            finished(
                run__precision=precision, run__seed=seed, run__rounds=5, run__eval_every=5
            ).summary.final_accuracy
            for seed in range(3)
        ]
        for precision in ("fp32", "bf16")
    }
    exact, rounded = (np.array(found[name], dtype=float) for name in ("fp32", "bf16"))
    assert exact.min() > 0.5
    assert abs(exact.mean() - rounded.mean()) < max(0.02, exact.std(ddof=1))


def scores(outputs: Outputs) -> Tensor:
    return outputs.logits


def through_head(outputs: Outputs) -> Tensor:
    return outputs.head(outputs.features * 2.0)


@pytest.mark.parametrize("way", [SequentialForward, VmapForward])
@pytest.mark.parametrize("read", [scores, through_head])
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_small_gradients_survive(
    way: Callable[[Network], Forward], read: Callable[[Outputs], Tensor], name: Any
) -> None:
    """Gradients are linear in what comes from the loss, however small that is: 2⁻⁴⁰ is zero in float16."""
    inputs, gradients = torch.randn(1, 5, FEATURES), {}
    for precision in ("fp32", name):
        forward = way(Network(mlp().float(), precision=Precision(precision)))
        x, buffers = forward.network.initial()
        for factor in (1.0, 2.0**-40):
            forward.start(x, buffers)
            values = read(forward(x[None], inputs, track=True))
            slope = factor * torch.arange(1.0, 1.0 + values.numel()).view(values.shape)
            gradients[precision, factor] = forward.backward((values, slope)).vector() / factor
    exact, large, small = gradients["fp32", 1.0], gradients[name, 1.0], gradients[name, 2.0**-40]
    assert torch.equal(small, large)
    torch.testing.assert_close(large, exact, rtol=0.02, atol=0.02 * float(exact.abs().max()))
    assert not torch.equal(large, exact)


def test_batch_norm_trains_in_bf16_with_statistics_in_float32() -> None:
    forward = SequentialForward(Network(conv_batchnorm().float(), precision=Precision("bf16")))
    x, buffers = forward.network.initial()
    forward.start(x, buffers)
    forward(x[None], torch.randn(1, 8, *IMAGE), track=True)
    assert forward.buffers().dtype == torch.float32
    assert not torch.equal(forward.buffers()[0], buffers)


def test_the_fast_path_of_linear_layers_is_left_out_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedwcm"):
        forwards = [
            build(from_settings(settings(run__precision=name, run__backend="vectorized"))).rounds.trainer.forward
            for name in ("fp32", "bf16")
        ]
    assert isinstance(forwards[0], LinearStack)
    assert isinstance(forwards[1], VmapForward)
    assert [record.message.count("fast path") for record in caplog.records if "bf16" in record.message] == [1]


def test_float16_is_refused_on_a_cpu_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"run\.precision = 'fp16' cannot be used on cpu: .*float16.*Use fp32"):
        build(from_settings(settings(run__precision="fp16")))
    with pytest.raises(ValueError, match=r"precision.*'tf32'.*fp32.*bf16.*fp16"):
        from_settings({"run.precision": "tf32"})


@pytest.mark.parametrize(("device", "expected"), [("cuda", (False, True, False)), ("cpu", (True, False, True))])
def test_a_gpu_convolves_in_float32_and_in_the_same_way_every_time(
    device: str, expected: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, cudnn = ("allow_tf32", "deterministic", "benchmark"), torch.backends.cudnn
    for flag, value in zip(flags, (True, False, True), strict=True):
        monkeypatch.setattr(cudnn, flag, value)
    choose_kernels(torch.device(device))
    assert tuple(getattr(cudnn, flag) for flag in flags) == expected
