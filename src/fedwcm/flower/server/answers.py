"""A client's answer to a phase of a round, checked field by field against what the server knows."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, RecordDict
from numpy.lib import format as npy
from torch import Tensor

from fedwcm.core.method import ClientStatistics
from fedwcm.core.types import Clients, Fault, Ints, Layout, Report, State
from fedwcm.engine.backends.in_process import NOT_FINITE
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates
from fedwcm.engine.rounds import CLIPPED
from fedwcm.flower.records import FINITE, METRICS, REPORT, RequestId, running_variances
from fedwcm.flower.untrusted import UnusableError, read_float, read_int, require_names, short_repr

GROWTH = 2
"""Factor by which a client's sample count may change from its first report; its weight depends on it."""
LARGEST_LOSS = 1e12
"""A larger mean loss is refused as implausible."""
ROUNDING = 1e-6
"""Relative difference allowed between a client's number and the server's: the same formula, on another machine."""


@dataclass(frozen=True, eq=False)
class AnswerReader:
    """Reads the answers to one request of a round.

    Args:
        trainer: the run's trainer, which gives a client's steps and learning rate from its number of samples.
        sent: what the clients were sent.
        like: an example of an answer.
        statistics: what clients reported before round 1, or with their first answer: it stays for the whole run.
    """

    trainer: ClientTrainer
    sent: Broadcast
    like: ClientUpdates
    statistics: dict[int, dict[str, float]]

    def read(self, content: RecordDict, request: RequestId, first_samples: int) -> tuple[int, ClientUpdates]:
        """Return the client's number of samples, near those that it first reported, and its result, one row."""
        try:
            facts = dict(content.config_records["answers"])
            _require_answer_to(facts, request)
            numbers = dict(content.metric_records["numbers"])
            arrays = dict(content.array_records["upload"])
        except KeyError as error:
            raise UnusableError(f"its answer cannot be read: the record {error} is missing") from None
        samples = check_samples(facts, first_samples)
        require_names("upload", arrays, self.like.upload)
        upload = {key: tensor_like(key, array, self.like.upload[key][0]) for key, array in arrays.items()}
        if "buffers" in upload:
            require_variances(upload["buffers"], self.trainer.forward.network.buffer_layout)
        return samples, self._result(request.client, samples, upload, numbers)

    def _result(self, client: int, samples: int, upload: State, numbers: Mapping[str, object]) -> ClientUpdates:
        metrics = [key for key in METRICS if any(name in numbers for name in METRICS)]
        require_names(
            "report", numbers, dict.fromkeys([*(REPORT + key for key in self.like.report), "lr", *metrics])
        )
        rate = self._rate(client, samples)
        return replace(
            self.like,
            ids=np.array([client]),
            upload={key: value[None] for key, value in upload.items()},
            report=self._report(client, numbers),
            state={},
            learning_rates=np.array([read_float(numbers, "lr", rate * (1 - ROUNDING), rate * (1 + ROUNDING))]),
            loss=np.array([read_float(numbers, "loss", -LARGEST_LOSS, LARGEST_LOSS) if metrics else np.nan]),
            accuracy=np.array([read_float(numbers, "accuracy", 0.0, 1.0) if metrics else np.nan]),
        )

    def _report(self, client: int, numbers: Mapping[str, object]) -> Report:
        """Return the method's report; statistics have the same bounds as before round 1, and their first value."""
        method, population = self.trainer.method, self.trainer.population
        bounds = {CLIPPED: (0.0, 1.0)}
        if isinstance(method, ClientStatistics):
            bounds |= method.statistics_range(population)
        report = {
            key: read_float(numbers, REPORT + key, *with_tolerance(*bounds[key]))
            for key in self.like.report
            if key in bounds
        }
        report |= {key: read_float(numbers, REPORT + key) for key in self.like.report if key not in bounds}
        if isinstance(method, ClientStatistics):
            names = method.statistics_range(population)
            report |= self.statistics.setdefault(client, {key: report[key] for key in names if key in report})
        return {key: np.array([report[key]]) for key in self.like.report}

    def _rate(self, client: int, samples: int) -> float:
        sizes: Ints = np.array([samples])
        unseen: Ints = np.zeros((1, self.trainer.population.classes), dtype=np.int64)
        known = Clients(np.array([client]), sizes, unseen, self.trainer.population.local_steps(sizes))
        return float(self.trainer.context(known, self.sent).learning_rates[0])


def check_samples(facts: Mapping[str, object], first_samples: int) -> int:
    """Return the number of samples in a record; it may not be far from what the client first reported."""
    return read_int(facts, "samples", max(1, first_samples // GROWTH), first_samples * GROWTH)


def with_tolerance(least: float, most: float) -> tuple[float, float]:
    """Return a range with room for rounding."""
    room = ROUNDING * max(abs(least), abs(most), ROUNDING)
    return least - room, most + room


def _require_answer_to(facts: Mapping[str, object], request: RequestId) -> None:
    for name in ("client", "run_id", "round", "task"):
        got, wanted = facts.get(name), getattr(request, name)
        if type(got) is not type(wanted) or got != wanted:
            fault = Fault.MISADDRESSED if name == "client" else Fault.REFUSED
            raise UnusableError(f"it answers for {name} {short_repr(got)}, but was asked for {wanted!r}", fault)
    if facts.get(FINITE) is False:
        raise UnusableError(f"its upload {NOT_FINITE}", Fault.NOT_FINITE)


def tensor_like(name: str, array: Array, like: Tensor) -> Tensor:
    """Return the array as a tensor like the example: same shape and precision, finite numbers."""
    dtype, shape = str(like.dtype).removeprefix("torch."), tuple(like.shape)
    if array.dtype != dtype or tuple(array.shape) != shape:
        raise UnusableError(
            f"its upload {name!r} is {array.dtype} of shape {tuple(array.shape)}, not {dtype} of shape {shape}"
        )
    values = unpack(name, array.data, np.dtype(dtype), shape)
    tensor = torch.from_numpy(values)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise UnusableError(f"its upload {name!r} {NOT_FINITE}", Fault.NOT_FINITE)
    return tensor


def unpack(name: str, data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Read NumPy's format without trusting its header: no pickles, no archives, and no more data than was sent."""
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        inside, fortran, kind = read_header(stream)
    except Exception as error:  # whatever the bytes make NumPy's parser do, they are the client's fault
        raise UnusableError(f"its upload {name!r} cannot be read ({type(error).__name__})") from None
    start, expected = stream.tell(), dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if (kind, tuple(inside), len(data) - start) != (dtype, shape, expected) or (fortran and len(shape) > 1):
        raise UnusableError(f"its upload {name!r} does not have the expected type and size")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).copy()


def require_variances(buffers: Tensor, layout: Layout) -> None:
    """Refuse flat buffers with a negative variance."""
    for name, values in running_variances(buffers, layout).items():
        if bool((values < 0).any()):
            least = float(values.min())
            raise UnusableError(f"its upload 'buffers' has {least:.3g} in {name!r}: a variance must be 0 or more")
