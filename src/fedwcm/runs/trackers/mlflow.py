"""MLflow: a database in `OUT/mlruns`, for `mlflow ui`; or the server that MLFLOW_TRACKING_URI names."""

import logging
import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedwcm.runs.records import Summary
from fedwcm.runs.scalars import scalars_of
from fedwcm.runs.trackers.protocol import TrackedRun, Tracker, remembered

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "fedwcm"
METRICS_AT_ONCE, PARAMETERS_AT_ONCE = 1000, 100
"""Limits of MLflow for one call."""


class MLflow(Tracker):
    """Options as parameters, scalars as metrics with the round as their step, the summary as metrics and tags."""

    name = "mlflow"
    package = "mlflow"

    _client: "MlflowClient | None" = None
    _run = ""
    _ending = "KILLED"

    def start(self, run: TrackedRun) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no usage data is sent
        from mlflow import MlflowClient
        from mlflow.entities import Param

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs every table of a new database
        local = (run.folder / "mlruns").resolve()
        local.mkdir(exist_ok=True)
        client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{local}/mlflow.db")

        def create() -> str:
            return str(client.create_run(_experiment(client), run_name=run.name).info.run_id)

        self._client = client
        self._run, new = remembered(local / "run-id", create)
        if not new:
            client.update_run(self._run, status="RUNNING")
            return
        parameters = [Param(key, str(value)) for key, value in run.settings.items()]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            client.log_batch(self._run, params=parameters[first : first + PARAMETERS_AT_ONCE])

    def log(self, number: int, scalars: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        assert self._client is not None
        now = int(1000 * time.time())
        metrics = [Metric(_allowed(key), value, now, number) for key, value in scalars.items()]
        for first in range(0, len(metrics), METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[first : first + METRICS_AT_ONCE])

    def finish(self, summary: Summary) -> None:
        assert self._client is not None
        values = summary.to_json()
        self.log(summary.rounds, {f"summary/{key}": value for key, value in scalars_of(values).items()})
        for key, value in values.items():
            if isinstance(value, str):
                self._client.set_tag(self._run, key, value)
        self._ending = "FAILED" if summary.diverged else "FINISHED"

    def close(self) -> None:
        if self._client is not None and self._run:
            self._client.set_terminated(self._run, status=self._ending)


def _experiment(client: "MlflowClient") -> str:
    """The experiment that all runs of this package belong to."""
    found = client.get_experiment_by_name(EXPERIMENT)
    return str(found.experiment_id if found is not None else client.create_experiment(EXPERIMENT))


def _allowed(key: str) -> str:
    """The name without the characters that MLflow rejects."""
    return re.sub(r"[^\w\-. :/]", "_", key)
