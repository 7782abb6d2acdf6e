"""Flower's mods around a client's training.

Mods such as Flower's own for differential privacy expect a message with one record of arrays, the model, and a
reply with one record of the same arrays, the trained model. Ours hold more. So mods are shown a message of that
form, and what they make of the trained model becomes the client's upload.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedwcm.config.schema import Config
from fedwcm.core.method import Method
from fedwcm.core.mixins import ClientStatistics, TwoPhase
from fedwcm.core.types import Vec
from fedwcm.engine.uploads import keeps_client_state

App = Callable[[Message, Context], Message]
"""A client app, or what a mod takes for one."""

Mod = Callable[[Message, Context, App], Message]
"""What Flower calls a mod; where its own type is, depends on its version."""

CLIPPING_NORM = "clipping_norm"
"""The key under which Flower's clipping mods look for the norm."""


def require_usable(mods: Sequence[Mod]) -> None:
    """Raise ValueError for mods of Flower's that need a server half which this package's server does not have."""
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if getattr(mod, "__module__", "").startswith("flwr.client.mod.secure_aggregation"):
            half = "Flower's SecAggPlusWorkflow, which drives only strategies of its older interface"
            raise ValueError(f"{name} is not possible: it would protect nothing, since its server half is {half}")
        if name == "adaptiveclipping_mod":
            half = "a strategy of Flower's that adapts the norm to what clients answer"
            raise ValueError(
                f"{name} is not possible: it needs {half}; use fixedclipping_mod and aggregation.max_norm"
            )


def require_possible(mods: Sequence[Mod], method: Method, config: Config, x: Vec) -> None:
    """Raise ValueError if the server needs more of this method's clients than the models that mods may change."""
    if not mods:
        return
    reason = None
    if isinstance(method, ClientStatistics):
        reason = "its weights depend on what clients report, which mods do not protect"
    elif isinstance(method, TwoPhase):
        reason = "its clients also answer in a first phase, which mods do not protect"
    elif keeps_client_state(method, x):
        reason = "its clients keep state that must agree with what they upload"
    if reason:
        raise ValueError(f"mods are not possible with the method {method.name}: {reason}")
    names = [getattr(mod, "__name__", "") for mod in mods]
    if "fixedclipping_mod" in names and config.aggregation.max_norm is None:
        raise ValueError("fixedclipping_mod needs the norm to which it clips: set aggregation.max_norm")


def through_mods(
    mods: Sequence[Mod],
    message: Message,
    context: Context,
    config: Config,
    train: Callable[[RecordDict], RecordDict],
) -> Message:
    """Return the answer to a request for training, with the upload that the mods leave."""
    received = message.content
    answers: list[RecordDict] = []

    def innermost(_: Message, __: Context) -> Message:
        answers.append(train(received))
        return Message(_trained(received, answers[0], config.method.name), reply_to=message)

    call: App = innermost
    for mod in reversed(mods):
        call = _wrapped(mod, call)
    message.content = _as_flower_sends(received, config)
    reply = call(message, context)
    message.content = received
    if reply.has_error():
        return reply
    if not answers:
        raise ValueError("a mod answered without training")
    upload = _upload(received, reply.content, answers[0])
    return Message(RecordDict({**answers[0], "upload": upload}), reply_to=message)


def _wrapped(mod: Mod, inner: App) -> App:
    return lambda message, context: mod(message, context, inner)


def _as_flower_sends(received: RecordDict, config: Config) -> RecordDict:
    """The model alone, and a config."""
    norm = config.aggregation.max_norm
    options: dict[str, Any] = {} if norm is None else {CLIPPING_NORM: norm}
    return RecordDict({"arrays": _model(received), "config": ConfigRecord(options)})


def _model(received: RecordDict) -> ArrayRecord:
    """The model that the server sent, without empty arrays."""
    return ArrayRecord(
        {key: array for key, array in received.array_records["model"].items() if np.prod(array.shape)}
    )


def _trained(received: RecordDict, answer: RecordDict, method: str) -> RecordDict:
    """A client's answer in Flower's form: the trained model, and its metrics."""
    upload, report = answer.array_records["upload"], answer.metric_records["numbers"]
    if set(upload) - {"delta", "buffers"} or set(report) - {"lr", "loss", "accuracy"}:
        told = sorted({*upload, *report} - {"delta", "buffers", "lr", "loss", "accuracy"})
        raise ValueError(f"mods are not possible with the method {method}: its clients also send {told}")
    model = {"x": received.array_records["model"]["x"].numpy() + upload["delta"].numpy()}
    if "buffers" in upload:
        model["buffers"] = upload["buffers"].numpy()
    numbers = {"num-examples": answer.config_records["answers"]["samples"], **report}
    arrays = ArrayRecord({key: Array(value) for key, value in model.items()})
    return RecordDict({"arrays": arrays, "metrics": MetricRecord(numbers)})  # type: ignore[arg-type]


def _upload(received: RecordDict, reply: RecordDict, answer: RecordDict) -> ArrayRecord:
    """The upload that belongs to the model which the mods left."""
    (model,) = reply.array_records.values()
    upload = answer.array_records["upload"]
    left = {"delta": model["x"].numpy() - received.array_records["model"]["x"].numpy()}
    if "buffers" in upload:
        left["buffers"] = model["buffers"].numpy()
    return ArrayRecord({key: Array(value.astype(upload[key].dtype)) for key, value in left.items()})
