"""Facts that are collected once, before round 1: the class distribution, and the method's client statistics.

They are kept in the run's folder: a restarted server reads them instead of asking the clients again. Above all,
classes are counted only once, even if the run then fails before its first round: the difference of two sums that
differ by one client is what that client has.
"""

import json
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.app import RecordDict

from fedwcm.config.population import population_of
from fedwcm.config.schema import Config
from fedwcm.core.gathering import decode_total
from fedwcm.core.mixins import ClientStatistics
from fedwcm.core.types import Ints, Population, Report
from fedwcm.flower.answers import widened
from fedwcm.flower.client_directory import ClientDirectory
from fedwcm.flower.counting import count_classes
from fedwcm.flower.records import population_record
from fedwcm.flower.run_config import AppOptions
from fedwcm.flower.untrusted import UnusableError, real, require_names
from fedwcm.privacy.noise import noise_bound
from fedwcm.runs.files import write_json
from fedwcm.runs.folder import RunFolder

NOT_ASKED = "it was not connected when the counting of classes began"
"""Why a client that nobody asked was not counted."""


@dataclass(frozen=True, eq=False)
class FederationSetup:
    """The federation before round 1, and the name under which clients keep the state of this run."""

    series: str
    clients: int
    mean_samples: float
    totals: Ints
    deviation: float
    """The mean distance of the clients' class distributions from the target."""
    statistics: Report
    first_samples: dict[int, int]
    """The number of samples that each client first reported."""
    not_counted: dict[int, str]
    """The clients whose classes were not counted, with the reason."""
    counted_with: dict[str, object]
    """The options that decide what is counted."""

    def population(self, config: Config) -> Population:
        """The public facts about the federation."""
        return population_of(config, self.totals, self.deviation, self.clients, self.mean_samples)

    def require_counted_with(self, config: Config) -> None:
        """Raise if other options need other counts: the clients would have to be asked again."""
        wanted, had = _counted_with(config), self.counted_with
        changed = [f"{key}: {had[key]} is now {wanted[key]}" for key in wanted if had[key] != wanted[key]]
        if changed:
            raise ValueError(
                f"the classes were counted with other options ({'; '.join(changed)}): "
                "use the former ones, or another flower.out"
            )

    @property
    def counted(self) -> list[int]:
        """The clients whose classes were counted."""
        return [client for client in self.first_samples if client not in self.not_counted]

    def require_enough(self, needed: int) -> None:
        """Raise if fewer clients than this were counted."""
        if len(self.counted) < needed:
            raise RuntimeError(
                f"{len(self.counted)} clients were counted, flower.min_clients = {needed} are needed"
            )

    def write(self, folder: Path) -> None:
        """Write `federation.json` into a run's folder."""
        statistics = {key: values.tolist() for key, values in self.statistics.items()}
        facts = {**vars(self), "totals": self.totals.tolist(), "statistics": statistics}
        write_json(RunFolder(folder).federation_file, facts)

    @classmethod
    def read(cls, folder: Path) -> "FederationSetup":
        """Read `federation.json` from a run's folder."""
        facts = json.loads(RunFolder(folder).federation_file.read_text(encoding="utf-8"))
        statistics = {key: np.array(values) for key, values in facts["statistics"].items()}
        samples = {int(client): told for client, told in facts["first_samples"].items()}
        reasons = {int(client): reason for client, reason in facts["not_counted"].items()}
        arrays = {"totals": np.array(facts["totals"]), "statistics": statistics}
        return cls(**{**facts, **arrays, "first_samples": samples, "not_counted": reasons})


def counted_setup(directory: ClientDirectory, options: AppOptions) -> FederationSetup:
    """Count the classes of all connected clients; those that do not answer are left out."""
    assert directory.info is not None, "clients are asked after they have sent their info"
    counted = count_classes(directory, directory.info.classes, options.config)
    if not counted.clients:
        raise RuntimeError("no client counted its samples")
    totals, deviation = decode_total(
        counted.total, len(counted.clients), noise_bound(options.config.privacy.epsilon)
    )
    told = dict(sorted(directory.first_samples.items()))
    unasked = {c: NOT_ASKED for c in told if c not in counted.clients and c not in counted.left_out}
    return FederationSetup(
        series=uuid.uuid4().hex[:16],
        clients=len(directory.samples),
        mean_samples=float(directory.samples[counted.clients].mean()),
        totals=totals,
        deviation=deviation,
        statistics={},
        first_samples=told,
        not_counted={**counted.left_out, **unasked},
        counted_with=_counted_with(options.config),
    )


def with_statistics(
    setup: FederationSetup, directory: ClientDirectory, options: AppOptions, method: ClientStatistics
) -> FederationSetup:
    """Ask the clients that were counted for what the method wants to know about them."""
    statistics = _statistics(directory, setup.counted, method, setup.population(options.config))
    needed = options.federation.min_clients
    told = len(next(iter(statistics.values()), ()))
    if told < needed:
        raise RuntimeError(f"{told} clients reported their statistics, flower.min_clients = {needed} are needed")
    return replace(setup, statistics=statistics)


def _statistics(
    directory: ClientDirectory, clients: list[int], method: ClientStatistics, population: Population
) -> Report:
    """What the method asks of every client, one entry for each that answered, by ascending number."""
    bounds = method.statistics_range(population)
    told: dict[int, dict[str, float]] = {}

    def receive(client: int, content: RecordDict) -> None:
        if "statistics" not in content.metric_records:
            raise UnusableError("its statistics cannot be read: the record 'statistics' is missing")
        values = dict(content.metric_records["statistics"])
        require_names("statistics", values, bounds)
        told[client] = {key: real(values, key, *widened(*bounds[key])) for key in bounds}

    question = RecordDict({"population": population_record(population)})
    directory.ask("query.statistics", dict.fromkeys(clients, question), receive)
    return {key: np.array([told[client][key] for client in sorted(told)]) for key in bounds}


def _counted_with(config: Config) -> dict[str, object]:
    target = config.run.target_shares
    return {
        "privacy.mode": config.privacy.mode,
        "privacy.epsilon": config.privacy.epsilon,
        "privacy.score_levels": config.privacy.levels,
        "run.target": None if target is None else target.tolist(),
    }
