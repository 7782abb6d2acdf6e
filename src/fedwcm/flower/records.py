"""Messages as Flower's records: tensors as named arrays in their own precision, numbers as they are."""

import json
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedwcm.config.schema import Config
from fedwcm.config.settings import from_settings, to_settings
from fedwcm.core.types import Layout, Population, Report, State
from fedwcm.engine.client import Broadcast, ClientUpdates, Task
from fedwcm.engine.rounds import CLIPPED
from fedwcm.privacy.options import PrivacyOptions

RUN = "run"
"""Name of the record with the run's configuration."""
METRICS = ("loss", "accuracy")
"""Numbers of an answer that a client may keep to itself, both or none."""
REPORT = "report/"
"""Prefix of the method's report among the numbers of an answer."""
FINITE = "finite"
"""Entry of an answer, False if the upload has a NaN or an infinity and is not sent."""
VARIANCE = "running_var"
"""The name that torch gives these buffers in every layer that has them."""


@dataclass(frozen=True)
class RequestId:
    """Identifies a request; an answer repeats it."""

    task: Task
    round: int
    """From 1, as users count."""
    client: int
    run_id: str
    """The run that the client's state belongs to, the same after a restart of the server."""


def to_arrays(state: State) -> ArrayRecord:
    """Return named tensors as a record."""
    return ArrayRecord({key: Array(value.detach().cpu().numpy()) for key, value in state.items()})


def to_tensors(record: ArrayRecord, device: torch.device) -> State:
    """Return a record as named tensors; single numbers stay on the host, which reads them at every step."""
    tensors = {key: torch.from_numpy(array.numpy()) for key, array in record.items()}
    return {key: value.to(device) if value.dim() else value for key, value in tensors.items()}


def population_record(population: Population) -> ConfigRecord:
    """Return the public facts about the federation as a record."""
    values = {field.name: getattr(population, field.name) for field in fields(population)}
    lists = {key: value.tolist() for key, value in values.items() if isinstance(value, np.ndarray)}
    return ConfigRecord({key: value for key, value in {**values, **lists}.items() if value is not None})


def read_population(record: ConfigRecord) -> Population:
    """Return a record as the public facts about the federation."""
    values: dict[str, Any] = dict(record)
    arrays = {key: np.array(value, dtype=np.float64) for key, value in values.items() if isinstance(value, list)}
    return Population(**{"epochs": None, **values, **arrays})


def config_record(config: Config, secure: bool, share_metrics: bool) -> ConfigRecord:
    """Return the options that differ from the defaults: part of every message, so that clients need no others.

    `secure` says whether clients keep their uploads for secure aggregation, `share_metrics` whether they tell
    their loss and accuracy where the run protects something.
    """
    defaults = to_settings(Config())
    changed = {key: value for key, value in to_settings(config).items() if defaults.get(key) != value}
    return ConfigRecord({"settings": json.dumps(changed), "secure": secure, "share_metrics": share_metrics})


def read_config(content: RecordDict) -> Config:
    """Return the configuration of the run that a message belongs to."""
    return from_settings(json.loads(cast(str, content.config_records[RUN]["settings"])))


def is_secure(content: RecordDict) -> bool:
    """Return whether the run that a message belongs to sums uploads by secure aggregation."""
    return bool(content.config_records[RUN].get("secure"))


def shares_metrics(content: RecordDict, privacy: PrivacyOptions) -> bool:
    """Return whether the run that a message belongs to lets clients tell their loss and accuracy.

    A server that chooses its models can read class counts from them, so a run that protects anything does not,
    unless its operator says so.
    """
    return not (privacy.protects or is_secure(content)) or bool(content.config_records[RUN].get("share_metrics"))


def without_metrics(content: RecordDict) -> RecordDict:
    """Return an answer without the client's loss and accuracy."""
    if "numbers" not in content.metric_records:
        return content
    numbers = {key: value for key, value in content.metric_records["numbers"].items() if key not in METRICS}
    return RecordDict({**content, "numbers": MetricRecord(numbers)})


def bounds_itself(config: Config, secure: bool) -> bool:
    """Return whether clients bound their increments and report it: for secret uploads, or a bound that adapts."""
    return config.aggregation.max_norm is not None and (secure or config.aggregation.quantile is not None)


def broadcast_records(sent: Broadcast, population: Population) -> RecordDict:
    """Return what all clients of a phase receive; equal records are sent to the SuperLink only once."""
    return RecordDict(
        {
            "model": to_arrays({"x": sent.x, "buffers": sent.buffers}),
            "message": to_arrays(sent.message),
            "population": population_record(population),
        }
    )


def request(shared: RecordDict, request_id: RequestId, sent: Broadcast, last_used: int) -> RecordDict:
    """Return a request to one client. `last_used`: the last round for which its answer was used, 0 if none."""
    bound = {} if sent.max_norm is None else {"max_norm": sent.max_norm}
    asking = ConfigRecord({**vars(request_id), **bound, "lr": sent.base_lr, "last_used": last_used})
    return RecordDict({**shared, "asked": asking})


def max_norm(content: RecordDict) -> float | None:
    """Return the bound on the norm of an increment in a request, None if there is none."""
    return cast(float | None, content.config_records["asked"].get("max_norm"))


def read_request(content: RecordDict, device: torch.device) -> tuple[RequestId, Broadcast, int]:
    """Return the request's id, the broadcast, and the round of the client's last used answer."""
    facts: dict[str, Any] = dict(content.config_records["asked"])
    request_id = RequestId(**{field.name: facts[field.name] for field in fields(RequestId)})
    model = to_tensors(content.array_records["model"], device)
    message = to_tensors(content.array_records["message"], device)
    sent = Broadcast(request_id.round - 1, model["x"], model["buffers"], message, facts["lr"], max_norm(content))
    return request_id, sent, facts["last_used"]


def report_record(report: Report) -> MetricRecord:
    """Return one client's numbers as a record."""
    return MetricRecord({key: float(values[0]) for key, values in report.items()})


def answer(request_id: RequestId, samples: int, result: ClientUpdates) -> RecordDict:
    """Return one client's answer; its result has one row."""
    report = {REPORT + key: values for key, values in result.report.items()}
    numbers = {**report, "lr": result.learning_rates, "loss": result.loss, "accuracy": result.accuracy}
    return RecordDict(
        {
            "upload": to_arrays({key: value[0] for key, value in result.upload.items()}),
            "numbers": report_record(numbers),
            "answers": ConfigRecord({**vars(request_id), "samples": samples}),
        }
    )


def with_clipped(content: RecordDict, clipped: bool) -> MetricRecord:
    """Return the numbers of an answer, and whether the client has scaled its increment down to the bound."""
    return MetricRecord({**content.metric_records["numbers"], REPORT + CLIPPED: float(clipped)})


def to_bytes_record(data: bytes) -> RecordDict:
    """Return a message of the encrypted protocol as a record."""
    return RecordDict({"encrypted": ConfigRecord({"data": data})})


def from_bytes_record(content: RecordDict) -> bytes:
    """Return a record as a message of the encrypted protocol."""
    return cast(bytes, content.config_records["encrypted"]["data"])


def running_variances(buffers: Tensor, layout: Layout) -> State:
    """Return views of the running variances in flat buffers, by name."""
    return {key: v for key, v in layout.unflatten(buffers).items() if key.rpartition(".")[2] == VARIANCE}
