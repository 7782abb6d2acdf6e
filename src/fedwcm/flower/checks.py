"""Whether an answer can be used: it must answer what was asked, look like what the method sends, and be finite."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Message

from fedwcm.core.types import Report, State
from fedwcm.engine.client import ClientUpdates
from fedwcm.flower.records import RequestId, read_answer


class UnusableError(Exception):
    """An answer that cannot be used; the text says why."""


@dataclass(frozen=True)
class Fault:
    """A client that a round went on without, and the reason."""

    client: int
    reason: str


def checked(
    reply: Message, asked: RequestId, like: ClientUpdates, device: torch.device
) -> tuple[int, ClientUpdates]:
    """The client's samples and result, if they answer the question and look like the example."""
    refuse_error(reply)
    try:
        answers, samples, result = read_answer(reply.content, device)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UnusableError(f"its answer cannot be read ({error!r})") from None
    if answers != asked:
        raise UnusableError(_mismatch(answers, asked))
    _check_tensors(result.upload, like.upload)
    numbers: Report = {"lr": result.learning_rates, "loss": result.loss, "accuracy": result.accuracy}
    _check_numbers({**result.report, **numbers}, {**like.report, **numbers})
    if not isinstance(samples, int) or samples < 1:
        raise UnusableError(f"it says that it has {samples!r} samples")
    return samples, result


def refuse_error(reply: Message) -> None:
    """Pass on what went wrong at the client, or on the way."""
    if reply.has_error():
        lines = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
        raise UnusableError(f"error {reply.error.code}: {lines[-1][:300]}")
    if not reply.has_content():
        raise UnusableError("its answer is empty")


def _mismatch(answers: RequestId, asked: RequestId) -> str:
    for name in ("client", "series", "round", "task"):
        got, wanted = getattr(answers, name), getattr(asked, name)
        if got != wanted:
            return f"it answers for {name} {got}, and was asked for {wanted}"
    raise AssertionError("called for equal answers")


def _check_tensors(upload: State, like: State) -> None:
    _check_names("upload", upload, like)
    for key, value in upload.items():
        wanted = like[key]
        if value.shape != wanted.shape or value.dtype != wanted.dtype:
            raise UnusableError(f"its upload {key!r} is {_form(value)}, not {_form(wanted)}")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise UnusableError(f"its upload {key!r} has a NaN or an infinity")


def _check_numbers(numbers: Report, like: Report) -> None:
    _check_names("report", numbers, like)
    for key, values in numbers.items():
        if not np.isfinite(values).all():
            raise UnusableError(f"its {key!r} is {values[0]}")


def _check_names(what: str, got: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    if got.keys() != wanted.keys():
        raise UnusableError(f"its {what} has {sorted(got)}, not {sorted(wanted)}")


def _form(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape[1:])}"
