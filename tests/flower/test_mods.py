"""Flower's mods work on our messages; where they would protect nothing, they are refused in words."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message
from flwr.app.message_type import MessageType
from flwr.client import mod as older
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod

from fedwcm.experiment.run import Run
from fedwcm.flower import add_training, client_app

from .federation import CLIENTS, data, finish, grid, in_simulator, model
from .wire import strike


def run_federation(method: str, mods: list[Any], **changes: Any) -> tuple[Run, list[float]]:
    """The run, and the norm of every upload."""
    norms: list[float] = []

    def watch(_: Message, reply: Message) -> Message:
        if not reply.has_error() and "delta" in reply.content.array_records["upload"]:
            norms.append(float(np.linalg.norm(reply.content.array_records["upload"]["delta"].numpy())))
        return reply

    app = client_app(model=model, data=data, mods=mods)
    return finish(grid(method, strike(watch, kind="train.train"), app=app, **{"run.rounds": 2, **changes})), norms


def assert_close(one: Run, other: Run) -> None:
    for name, tensor in one.model.items():
        torch.testing.assert_close(other.model[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fedcm"])
def test_fixed_clipping_on_the_clients_is_the_simulator_s_bound(method: str) -> None:
    bound = {"aggregation.max_norm": 0.02}
    finished, norms = run_federation(method, [fixedclipping_mod], **bound)
    assert max(norms) == pytest.approx(0.02, rel=1e-3)
    assert_close(in_simulator(method, **{"run.rounds": 2}, **bound), finished)


def test_local_differential_privacy_clips_and_adds_its_noise() -> None:
    sensitivity, epsilon, delta = 1e-3, 2.0, 1e-5
    _, norms = run_federation("fedprox", [LocalDpMod(0.05, sensitivity, epsilon, delta)])
    size = sum(p.numel() for p in model().parameters())
    noise = sensitivity * np.sqrt(2 * np.log(1.25 / delta)) / epsilon
    np.testing.assert_allclose(norms, np.hypot(0.05, noise * np.sqrt(size)), rtol=0.2)


def test_mods_wrap_each_other_as_in_flower() -> None:
    """The first is the outermost; what it does to the reply comes last."""
    seen: list[str] = []

    def note(name: str, factor: float) -> Any:
        def mod(message: Message, context: Context, call: Any) -> Message:
            seen.append(name)
            reply = call(message, context)
            (came,), (goes,) = message.content.array_records.values(), reply.content.array_records.values()
            scaled = came["x"].numpy() + factor * (goes["x"].numpy() - came["x"].numpy())
            reply.content["arrays"] = ArrayRecord({"x": Array(scaled.astype(np.float32))})
            return reply

        return mod

    finished, _ = run_federation("fedavg", [note("outer", 4.0), note("inner", 0.25)])
    assert seen[:2] == ["outer", "inner"]
    assert_close(in_simulator("fedavg", **{"run.rounds": 2}), finished)


def test_a_mod_that_concerns_training_alone_acts_once_in_each() -> None:
    acted: list[str] = []

    def mod(message: Message, context: Context, call: Any) -> Message:
        if message.metadata.message_type == MessageType.TRAIN:
            acted.append(message.metadata.message_type)
        return call(message, context)

    finished, norms = run_federation("fedavg", [mod], **{"participation.fraction": 1.0})
    assert len(acted) == len(norms) == sum(record.participants for record in finished.history) == 2 * CLIENTS


def test_a_mod_that_answers_with_an_error_leaves_its_client_out() -> None:
    def refuse(message: Message, context: Context, call: Any) -> Message:
        if context.node_config["partition-id"] == 1:
            return Message(Error(7, "not today"), reply_to=message)
        return call(message, context)

    finished, _ = run_federation("fedavg", [refuse], **{"participation.fraction": 1.0, "run.rounds": 1})
    assert finished.history[0].left_out == {"1": "error 7: not today"}


@pytest.mark.parametrize("mod", [older.LocalDpMod(1.0, 1.0, 1.0, 1e-5), older.fixedclipping_mod])
def test_mods_of_the_older_module_are_refused_by_name(mod: Any) -> None:
    """They would pass on what they do not recognise, and protect nothing."""
    sentence = "of flwr.client.mod cannot act on this app's messages: take .* of flwr.clientapp.mod"
    with pytest.raises(ValueError, match=sentence):
        client_app(model=model, data=data, mods=[mod])
    with pytest.raises(ValueError, match=sentence):
        add_training(ClientApp(mods=[mod]), model=model, data=data)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fedwcm", "its weights depend on what clients report"),
        ("scaffold", "its clients keep state"),
        ("mimelite", "its clients also answer in a first phase"),
        ("fedavg", "fixedclipping_mod needs aggregation.max_norm"),
    ],
)
def test_methods_that_mods_do_not_protect_are_refused_by_name(
    method: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        run_federation(method, [fixedclipping_mod])
    lines = [line for line in caplog.messages if reason in line]
    assert lines
    assert method == "fedavg" or f"the method {method}" in lines[0]


@pytest.mark.parametrize(("mods", "secure"), [([adaptiveclipping_mod], True), ([], False), ([], True)])
def test_a_bound_that_adapts_is_the_simulator_s(mods: list[Any], secure: bool) -> None:
    """It is too short for all at first, and grows until half of the increments are within it."""
    options = {"aggregation.max_norm": 0.02, "aggregation.quantile": 0.5, "aggregation.norm_lr": 2.0}
    rounds = {"run.rounds": 3, "participation.fraction": 1.0}
    around = [secaggplus_mod, *mods] if secure else mods
    finished, _ = run_federation("fedavg", around, **options, **rounds, **{"flower.secure_aggregation": secure})
    simulated = in_simulator("fedavg", **rounds, **options)
    bounds = [record.extra["max_norm"] for record in finished.history]
    assert bounds == pytest.approx([record.extra["max_norm"] for record in simulated.history])
    assert bounds[:2] == pytest.approx([0.02, 0.02 * np.e])
    assert_close(simulated, finished)


def test_mods_that_would_do_nothing_around_the_app_are_refused() -> None:
    """They would act on messages of their own server alone."""
    for mod in (fixedclipping_mod, adaptiveclipping_mod, secaggplus_mod):
        with pytest.raises(ValueError, match="not possible around the app"):
            add_training(ClientApp(mods=[mod]), model=model, data=data)
