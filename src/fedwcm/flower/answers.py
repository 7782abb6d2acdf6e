"""A client's answer to a phase of a round, checked field by field against what the server knows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import RecordDict

from fedwcm.core.mixins import ClientStatistics
from fedwcm.core.types import Clients, Ints, Report, State
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates
from fedwcm.engine.rounds import CLIPPED
from fedwcm.flower.arrays import tensor_like
from fedwcm.flower.records import REPORT, RequestId
from fedwcm.flower.untrusted import UnusableError, real, require_names, shown, whole
from fedwcm.flower.variances import require_variances

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
    """

    trainer: ClientTrainer
    sent: Broadcast
    like: ClientUpdates

    def read(self, content: RecordDict, asked: RequestId, told: int) -> tuple[int, ClientUpdates]:
        """Return the client's number of samples and its result, one row; `told` is how many it first reported."""
        try:
            facts = dict(content.config_records["answers"])
            numbers = dict(content.metric_records["numbers"])
            arrays = dict(content.array_records["upload"])
        except KeyError as error:
            raise UnusableError(f"its answer cannot be read: the record {error} is missing") from None
        _require_answer_to(facts, asked)
        samples = check_samples(facts, told)
        require_names("upload", arrays, self.like.upload)
        upload = {key: tensor_like(key, array, self.like.upload[key][0]) for key, array in arrays.items()}
        if "buffers" in upload:
            require_variances(upload["buffers"], self.trainer.forward.network.buffer_layout)
        return samples, self._result(asked.client, samples, upload, numbers)

    def _result(self, client: int, samples: int, upload: State, numbers: Mapping[str, object]) -> ClientUpdates:
        expected = {**{REPORT + key: 0 for key in self.like.report}, "lr": 0, "loss": 0, "accuracy": 0}
        require_names("report", numbers, expected)
        rate = self._rate(client, samples)
        return replace(
            self.like,
            ids=np.array([client]),
            upload={key: value[None] for key, value in upload.items()},
            report=self._report(numbers),
            state={},
            learning_rates=np.array([real(numbers, "lr", rate * (1 - ROUNDING), rate * (1 + ROUNDING))]),
            loss=np.array([real(numbers, "loss", -LARGEST_LOSS, LARGEST_LOSS)]),
            accuracy=np.array([real(numbers, "accuracy", 0.0, 1.0)]),
        )

    def _report(self, numbers: Mapping[str, object]) -> Report:
        """The method's report; what the client also reported before round 1 has the same bounds as then."""
        method, population = self.trainer.method, self.trainer.population
        bounds = {CLIPPED: (0.0, 1.0)}
        if isinstance(method, ClientStatistics):
            bounds |= method.statistics_range(population)
        report = {
            key: real(numbers, REPORT + key, *widened(*bounds[key])) for key in self.like.report if key in bounds
        }
        report |= {key: real(numbers, REPORT + key) for key in self.like.report if key not in bounds}
        return {key: np.array([report[key]]) for key in self.like.report}

    def _rate(self, client: int, samples: int) -> float:
        sizes: Ints = np.array([samples])
        unseen: Ints = np.zeros((1, self.trainer.population.classes), dtype=np.int64)
        known = Clients(np.array([client]), sizes, unseen, self.trainer.population.local_steps(sizes))
        return float(self.trainer.context(known, self.sent).learning_rates[0])


def check_samples(facts: Mapping[str, object], told: int) -> int:
    """Return the number of samples in a record; it may not be far from what the client first reported."""
    return whole(facts, "samples", max(1, told // GROWTH), told * GROWTH)


def widened(least: float, most: float) -> tuple[float, float]:
    """Return a range with room for rounding."""
    room = ROUNDING * max(abs(least), abs(most), ROUNDING)
    return least - room, most + room


def _require_answer_to(facts: Mapping[str, object], asked: RequestId) -> None:
    for name in ("client", "series", "round", "task"):
        got, wanted = facts.get(name), getattr(asked, name)
        if type(got) is not type(wanted) or got != wanted:
            raise UnusableError(f"it answers for {name} {shown(got)}, but was asked for {wanted!r}")
