"""What is gathered once, before round 1: the class distribution, and what the method asks every client.

It is kept in the run's folder. A server that is started again goes on with it and asks nobody twice.
"""

import json
import os
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
from fedwcm.flower.counting import COUNTINGS
from fedwcm.flower.records import population_record, read_reports
from fedwcm.flower.run_config import AppOptions

FILE = "census.json"


@dataclass(frozen=True, eq=False)
class FederationSetup:
    """The federation before round 1, and the name under which clients keep the state of this run."""

    series: str
    clients: int
    mean_samples: float
    totals: Ints
    survey: Report

    def population(self, config: Config) -> Population:
        """What everybody may know."""
        return Population(
            clients=self.clients,
            classes=len(self.totals),
            mean_samples=self.mean_samples,
            prior=self.totals / self.totals.sum(),
            rounds=config.run.rounds,
            epochs=config.local.epochs,
            batch_size=config.local.batch_size,
        )

    def write(self, folder: Path) -> None:
        """Keep it in a run's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        survey = {key: values.tolist() for key, values in self.survey.items()}
        facts = {**vars(self), "totals": self.totals.tolist(), "survey": survey}
        draft = folder / f"{FILE}.tmp"
        draft.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        os.replace(draft, folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> "FederationSetup":
        """The other way round."""
        facts = json.loads((folder / FILE).read_text(encoding="utf-8"))
        survey = {key: np.array(values) for key, values in facts["survey"].items()}
        return cls(**{**facts, "totals": np.array(facts["totals"]), "survey": survey})


def take(roster: ClientDirectory, options: AppOptions, method: Method) -> FederationSetup:
    """Ask all clients that are here; those that do not answer are not counted."""
    assert roster.introduction is not None, "the census follows the introductions"
    needed = options.federation.min_clients
    counted, totals = COUNTINGS[options.federation.privacy](roster, roster.met, roster.introduction.classes)
    _require_enough(len(counted), needed, "counted their samples")
    mean = float(roster.samples[counted].mean())
    census = FederationSetup(uuid.uuid4().hex[:16], len(roster.samples), mean, totals, {})
    population = census.population(options.config)
    if not isinstance(method, ClientStatistics):
        return census
    question = RecordDict({"population": population_record(population)})
    answers = usable(roster.ask("query.survey", dict.fromkeys(counted, question)), "survey")
    _require_enough(len(answers), needed, "answered the method's survey")
    return replace(census, survey=read_reports([m.content.metric_records["survey"] for m in answers.values()]))


def _require_enough(clients: int, needed: int, what: str) -> None:
    if clients < needed:
        raise RuntimeError(f"{clients} clients {what}, flower.min_clients = {needed} are needed")
