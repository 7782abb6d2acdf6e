"""MLflow: a database in `OUT/mlruns`, for `mlflow ui`; or the server that MLFLOW_TRACKING_URI names."""

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedwcm.experiment.records import Summary
from fedwcm.experiment.trackers import TrackedRun, Tracker, read_or_make, scalars_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "fedwcm"
"""The experiment of all runs of this package, unless MLFLOW_EXPERIMENT_NAME names another."""

DEFAULT_ID, DEFAULT_NAME = "0", "Default"
"""The experiment that MLflow makes in every new database."""

PAGE = "#/experiments/{}/runs/{}/model-metrics?workflowType=machine_learning"
"""A run's curves. By itself, MLflow opens on a page about language models, which is empty."""

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
        local = _local(run.folder)
        local.mkdir(exist_ok=True)
        client = MlflowClient(tracking_uri=_server() or _database(run.folder))

        def create() -> str:
            experiment = _experiment(client, is_own=not _server())
            return str(client.create_run(experiment, run_name=run.name).info.run_id)

        self._client = client
        self._run, new = read_or_make(local / "run-id", create)
        experiment = client.get_run(self._run).info.experiment_id
        (local / "page").write_text(f"{PAGE.format(experiment, self._run)}\n", encoding="utf-8")
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
        named = {re.sub(r"[^\w\-. :/]", "_", key): value for key, value in scalars.items()}  # as MLflow allows
        metrics = [Metric(key, value, now, number) for key, value in named.items()]
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

    def view(self, folder: Path) -> str | None:
        file = _local(folder) / "page"
        if not file.exists():
            return None
        page, server = file.read_text(encoding="utf-8").strip(), _server()
        if server is not None and server.startswith("http"):
            return f"{server.rstrip('/')}/{page}"
        store = server or _database(folder)
        return f"mlflow ui --backend-store-uri '{store}', then open 'http://127.0.0.1:5000/{page}'"


def _local(folder: Path) -> Path:
    return (folder / "mlruns").resolve()


def _database(folder: Path) -> str:
    return f"sqlite:///{_local(folder)}/mlflow.db"


def _server() -> str | None:
    """Return the store that the user names, if any."""
    return os.environ.get("MLFLOW_TRACKING_URI") or None


def _experiment(client: "MlflowClient", *, is_own: bool) -> str:
    """Return the experiment that runs belong to, made if need be.

    In a run's own database it takes the place of MLflow's default, which would stay empty beside it.
    """
    from mlflow.exceptions import MlflowException

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return str(experiment.experiment_id)
    if is_own and client.get_experiment(DEFAULT_ID).name == DEFAULT_NAME:
        client.rename_experiment(DEFAULT_ID, name)
        return DEFAULT_ID
    try:
        return str(client.create_experiment(name))
    except MlflowException:  # another run has just made it
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return str(experiment.experiment_id)
