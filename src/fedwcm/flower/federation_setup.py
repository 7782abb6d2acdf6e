"""Facts that are collected once, before round 1: the class distribution, and the method's client statistics.

They are kept in the run's folder: a restarted server reads them instead of asking the clients again.
"""

import json
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.app import RecordDict

from fedwcm.config.schema import Config
from fedwcm.core.method import Method
from fedwcm.core.mixins import ClientStatistics
from fedwcm.core.types import Ints, Population, Report
from fedwcm.flower.client_directory import ClientDirectory, usable
from fedwcm.flower.counting import COUNTING_PROTOCOLS
from fedwcm.flower.records import population_record, read_reports
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
    survey: Report

    def population(self, config: Config) -> Population:
        """The public facts about the federation."""
        return Population(
            clients=self.clients,
            classes=len(self.totals),
            mean_samples=self.mean_samples,
            prior=self.totals / self.totals.sum(),
            rounds=config.run.rounds,
            epochs=config.local.epochs,
            batch_size=config.local.batch_size,
            target=config.run.target_shares,
        )

    def write(self, folder: Path) -> None:
        """Write `federation.json` into a run's folder."""
        survey = {key: values.tolist() for key, values in self.survey.items()}
        facts = {**vars(self), "totals": self.totals.tolist(), "survey": survey}
        replace_file(RunFolder(folder).federation_file, json.dumps(facts, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "FederationSetup":
        """Read `federation.json` from a run's folder."""
        facts = json.loads(RunFolder(folder).federation_file.read_text(encoding="utf-8"))
        survey = {key: np.array(values) for key, values in facts["survey"].items()}
        return cls(**{**facts, "totals": np.array(facts["totals"]), "survey": survey})


def collect_setup(directory: ClientDirectory, options: AppOptions, method: Method) -> FederationSetup:
    """Ask all connected clients; those that do not answer are left out."""
    assert directory.info is not None, "clients are asked after they have sent their info"
    needed = options.federation.min_clients
    counted, totals = COUNTING_PROTOCOLS[options.federation.privacy](
        directory, directory.known, directory.info.classes
    )
    _require_enough(len(counted), needed, "counted their samples")
    mean = float(directory.samples[counted].mean())
    setup = FederationSetup(uuid.uuid4().hex[:16], len(directory.samples), mean, totals, {})
    population = setup.population(options.config)
    if not isinstance(method, ClientStatistics):
        return setup
    question = RecordDict({"population": population_record(population)})
    answers = usable(directory.ask("query.survey", dict.fromkeys(counted, question)), "survey")
    _require_enough(len(answers), needed, "answered the method's survey")
    return replace(setup, survey=read_reports([m.content.metric_records["survey"] for m in answers.values()]))


def _require_enough(clients: int, needed: int, what: str) -> None:
    if clients < needed:
        raise RuntimeError(f"{clients} clients {what}, flower.min_clients = {needed} are needed")
