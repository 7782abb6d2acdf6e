"""Facts that are collected once, before round 1: the class distribution, and the method's client statistics.

They are kept in the run's folder: a restarted server reads them instead of asking the clients again.
"""

import json
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.app import RecordDict

from fedwcm.config.population import population_of
from fedwcm.config.schema import Config
from fedwcm.core.gathering import read_sum
from fedwcm.core.method import Method
from fedwcm.core.mixins import ClientStatistics
from fedwcm.core.types import Ints, Population, Report
from fedwcm.flower.answers import widened
from fedwcm.flower.checks import UnusableError, real, require_names
from fedwcm.flower.client_directory import ClientDirectory
from fedwcm.flower.counting import count_classes
from fedwcm.flower.records import population_record
from fedwcm.flower.run_config import AppOptions
from fedwcm.runs.files import replace_file
from fedwcm.runs.folder import RunFolder


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
    """The number of samples that each client told first."""
    not_counted: dict[int, str]
    """The clients whose classes were not counted, with the reason."""

    def population(self, config: Config) -> Population:
        """The public facts about the federation."""
        return population_of(config, self.totals, self.deviation, self.clients, self.mean_samples)

    def write(self, folder: Path) -> None:
        """Write `federation.json` into a run's folder."""
        statistics = {key: values.tolist() for key, values in self.statistics.items()}
        facts = {**vars(self), "totals": self.totals.tolist(), "statistics": statistics}
        replace_file(RunFolder(folder).federation_file, json.dumps(facts, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "FederationSetup":
        """Read `federation.json` from a run's folder."""
        facts = json.loads(RunFolder(folder).federation_file.read_text(encoding="utf-8"))
        statistics = {key: np.array(values) for key, values in facts["statistics"].items()}
        samples = {int(client): told for client, told in facts["first_samples"].items()}
        reasons = {int(client): reason for client, reason in facts["not_counted"].items()}
        arrays = {"totals": np.array(facts["totals"]), "statistics": statistics}
        return cls(**{**facts, **arrays, "first_samples": samples, "not_counted": reasons})


def collect_setup(directory: ClientDirectory, options: AppOptions, method: Method) -> FederationSetup:
    """Ask all connected clients; those that do not answer are left out."""
    assert directory.info is not None, "clients are asked after they have sent their info"
    needed = options.federation.min_clients
    counted = count_classes(directory, directory.info.classes, options.config)
    clients = counted.clients
    _require_enough(len(clients), needed, "counted their samples")
    mean = float(directory.samples[clients].mean())
    told = {client: directory.first_samples[client] for client in directory.known}
    series, everybody = uuid.uuid4().hex[:16], len(directory.samples)
    totals, deviation = read_sum(counted.total, len(clients))
    setup = FederationSetup(series, everybody, mean, totals, deviation, {}, told, counted.left_out)
    if not isinstance(method, ClientStatistics):
        return setup
    statistics = _statistics(directory, clients, method, setup.population(options.config))
    _require_enough(len(next(iter(statistics.values()), ())), needed, "told the method's statistics")
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


def _require_enough(clients: int, needed: int, what: str) -> None:
    if clients < needed:
        raise RuntimeError(f"{clients} clients {what}, flower.min_clients = {needed} are needed")
