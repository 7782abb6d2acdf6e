"""Flower's mods around a client's training.

Mods such as Flower's own for differential privacy expect a message with one record of arrays, the model, and a
reply with one record of the same arrays, the trained model. Ours hold more. So mods are shown a message of that
form, and what they make of the trained model becomes the client's upload. The mod for secure aggregation has
messages of its own instead (`secure/client.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedwcm.config.schema import Config
from fedwcm.core.method import ClientStatistics, Method, TwoPhase
from fedwcm.core.types import Layout, Vec
from fedwcm.engine.rounds import CLIPPED
from fedwcm.engine.uploads import keeps_client_state
from fedwcm.flower.records import REPORT, max_norm, running_variances, with_clipped

App = Callable[[Message, Context], Message]
"""A client app, or what a mod takes for one."""

Mod = Callable[[Message, Context, App], Message]
"""What Flower calls a mod; where Flower defines its own type depends on the version."""

TRAIN = "train"
"""The type of message that mods expect around training; ours also name the task."""
OLDER, CURRENT = "flwr.client.mod", "flwr.clientapp.mod"
"""Flower's modules of mods; those of the older one look for records that our messages do not have."""
CLIPPING_NORM, NORM_BIT = "clipping_norm", "norm_bit"
"""The keys under which Flower's clipping mods look for the norm, and tell whether they have clipped."""
CLIPPING = {"fixedclipping_mod": "aggregation.max_norm", "adaptiveclipping_mod": "aggregation.quantile"}
"""Flower's clipping mods, and the option that each needs."""


@dataclass(frozen=True)
class Mods:
    """A client's mods: the one for secure aggregation, if there is one, and those around training."""

    secure: Mod | None
    training: tuple[Mod, ...]

    @classmethod
    def of(cls, mods: Sequence[Mod]) -> "Mods":
        """Sort mods; raises ValueError if secure aggregation is not the last thing that happens to an upload."""
        _require_current(mods)
        secure = [mod for mod in mods if _is_secure(mod)]
        if secure and (len(secure) > 1 or mods[0] is not secure[0]):
            raise ValueError(f"{name_of(secure[-1])} must be the first mod: it masks what the others have changed")
        return cls(secure[0] if secure else None, tuple(mod for mod in mods if not _is_secure(mod)))

    def require_as_asked(self, secure: bool) -> None:
        """Raise ValueError unless client and server agree on whether uploads are summed securely."""
        if secure and self.secure is None:
            raise ValueError(
                "the run has flower.secure_aggregation = true: this client's app must have mods=[secaggplus_mod]"
            )
        if self.secure is not None and not secure:
            raise ValueError(
                f"this client has {name_of(self.secure)} and sends no upload without it: the run must have "
                "flower.secure_aggregation = true"
            )


def name_of(mod: Mod) -> str:
    """Return a mod's name, for messages."""
    return getattr(mod, "__name__", type(mod).__name__)


def _is_secure(mod: Mod) -> bool:
    return getattr(mod, "__module__", "").startswith(f"{OLDER}.secure_aggregation")


def _require_current(mods: Sequence[Mod]) -> None:
    """Raise ValueError for mods of Flower's older interface other than secure aggregation."""
    for mod in mods:
        if getattr(mod, "__module__", "").startswith(f"{OLDER}.") and not _is_secure(mod):
            name = name_of(mod)
            raise ValueError(f"{name} of {OLDER} cannot act on this app's messages: take {name} of {CURRENT}")


def require_usable(around_app: Sequence[Mod]) -> None:
    """Raise ValueError for mods of Flower's that would have no effect around the whole app."""
    _require_current(around_app)
    for mod in around_app:
        name = name_of(mod)
        if _is_secure(mod) or name in CLIPPING:
            raise ValueError(f"{name} is not possible around the app: give it to add_training(…, mods=[{name}])")


def require_mods_allowed(mods: Sequence[Mod], method: Method, config: Config, x: Vec) -> None:
    """Raise ValueError if mods cannot protect all that this method's clients send, or need an option not set."""
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
    aggregation = config.aggregation
    bounds = {"aggregation.max_norm": aggregation.max_norm, "aggregation.quantile": aggregation.quantile}
    for name in map(name_of, mods):
        if name in CLIPPING and bounds[CLIPPING[name]] is None:
            raise ValueError(f"{name} needs {CLIPPING[name]}: set it in the run's options")


def through_mods(
    mods: Sequence[Mod],
    message: Message,
    context: Context,
    config: Config,
    train: Callable[[], RecordDict],
) -> Message:
    """Return the answer to a request for training, with the upload as the mods changed it."""
    received = message.content
    if not mods:
        return Message(train(), reply_to=message)
    answers: list[RecordDict] = []

    def innermost(_: Message, __: Context) -> Message:
        answers.append(train())
        return Message(_train(received, answers[0], config.method.name), reply_to=message)

    call: App = innermost
    for mod in reversed(mods):
        call = _wrap(mod, call)
    kind = message.metadata.message_type
    message.content, message.metadata.message_type = _as_flower_sends(received), TRAIN
    try:
        reply = call(message, context)
    finally:
        message.content, message.metadata.message_type = received, kind
    if reply.has_error():
        return Message(reply.error, reply_to=message)
    if not answers:
        raise ValueError("a mod answered without training")
    upload = _upload(received, reply.content, answers[0])
    return Message(
        RecordDict({**answers[0], **_clip(reply.content, answers[0]), "upload": upload}), reply_to=message
    )


def _wrap(mod: Mod, inner: App) -> App:
    return lambda message, context: mod(message, context, inner)


def _clip(reply: RecordDict, answer: RecordDict) -> dict[str, MetricRecord]:
    """Return the numbers of an answer, with what a mod says about clipping."""
    norm_bits = [record[NORM_BIT] for record in reply.metric_records.values() if NORM_BIT in record]
    return {"numbers": with_clipped(answer, bool(norm_bits[0]))} if norm_bits else {}


def _as_flower_sends(received: RecordDict) -> RecordDict:
    """Return the model alone, without empty arrays, and a config."""
    norm = max_norm(received)
    options: dict[str, Any] = {} if norm is None else {CLIPPING_NORM: norm}
    model = {key: array for key, array in received.array_records["model"].items() if np.prod(array.shape)}
    return RecordDict({"arrays": ArrayRecord(model), "config": ConfigRecord(options)})


def _train(received: RecordDict, answer: RecordDict, method: str) -> RecordDict:
    """Return a client's answer in Flower's form: the trained model, and its metrics."""
    upload, report = answer.array_records["upload"], answer.metric_records["numbers"]
    if set(upload) - {"delta", "buffers"} or set(report) - {"lr", "loss", "accuracy"}:
        others = sorted({*upload, *report} - {"delta", "buffers", "lr", "loss", "accuracy"})
        raise ValueError(f"mods are not possible with the method {method}: its clients also send {others}")
    model = {"x": received.array_records["model"]["x"].numpy() + upload["delta"].numpy()}
    if "buffers" in upload:
        model["buffers"] = upload["buffers"].numpy()
    numbers = {"num-examples": answer.config_records["answers"]["samples"], **report}
    arrays = ArrayRecord({key: Array(value) for key, value in model.items()})
    return RecordDict({"arrays": arrays, "metrics": MetricRecord(numbers)})  # type: ignore[arg-type]


def _upload(received: RecordDict, reply: RecordDict, answer: RecordDict) -> ArrayRecord:
    """Return the upload that belongs to the model as the mods changed it."""
    (model,) = reply.array_records.values()
    upload = answer.array_records["upload"]
    left = {"delta": model["x"].numpy() - received.array_records["model"]["x"].numpy()}
    if "buffers" in upload:
        left["buffers"] = model["buffers"].numpy()
    return ArrayRecord({key: Array(value.astype(upload[key].dtype)) for key, value in left.items()})


def clip_upload(answer: RecordDict, max_norm: float) -> RecordDict:
    """Return the answer with an increment of at most this norm, and whether the increment was longer.

    If a mod has already clipped the increment and reported it, the answer stays as it is.
    """
    if REPORT + CLIPPED in answer.metric_records["numbers"]:
        return answer
    upload = answer.array_records["upload"]
    increment = upload["delta"].numpy()
    norm = float(np.linalg.norm(increment.astype(np.float64)))
    if norm > max_norm:
        upload = ArrayRecord({**upload, "delta": Array((increment * (max_norm / norm)).astype(increment.dtype))})
    return RecordDict({**answer, "upload": upload, "numbers": with_clipped(answer, norm > max_norm)})


def clamp_variances(answer: RecordDict, layout: Layout) -> RecordDict:
    """Return the answer with 0 in place of negative variances, which noise may have made of small ones."""
    upload = answer.array_records["upload"]
    if "buffers" not in upload:
        return answer
    buffers = torch.from_numpy(np.array(upload["buffers"].numpy()))
    for values in running_variances(buffers, layout).values():
        values.clamp_(min=0)
    return RecordDict({**answer, "upload": ArrayRecord({**upload, "buffers": Array(buffers.numpy())})})
