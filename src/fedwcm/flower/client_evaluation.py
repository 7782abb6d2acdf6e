"""Evaluation on the clients: each tests the model on its own data and tells a few numbers."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedwcm.core.rng import Purpose, generator
from fedwcm.engine.network import Network
from fedwcm.flower.checks import UnusableError, real, require_names, whole
from fedwcm.flower.client_directory import ClientDirectory
from fedwcm.runs.selection import EvaluatedModel

SAMPLES = "num-examples"
"""Flower's name for the number of samples that a client's metrics are weighted by."""


class ClientEvaluation:
    """Asks a share of the clients, drawn anew each time, to test a model, by messages of Flower's own form.

    Args:
        directory: the clients.
        network: the server's model.
        fraction: share of the clients that is asked.
        seed: seed of the run.
        max_samples: the number of samples beyond which a client is not believed.
        config: what the clients are sent besides the model.
    """

    def __init__(
        self,
        directory: ClientDirectory,
        network: Network,
        fraction: float,
        seed: int,
        max_samples: int,
        config: ConfigRecord | None = None,
    ) -> None:
        self._directory, self._network, self._fraction = directory, network, fraction
        self._seed, self._max_samples = seed, max_samples
        self._config = ConfigRecord() if config is None else config

    def __call__(self, model: EvaluatedModel) -> dict[str, object]:
        """The mean of each metric, weighted by samples, as `clients_NAME`, and each client's as `per_client`."""
        told = self._ask(model)
        if not told:
            return {}
        samples = np.array([metrics[SAMPLES] for metrics in told.values()])
        names = [name for name in next(iter(told.values())) if name != SAMPLES]
        means = {
            f"clients_{name}": float(np.average([metrics[name] for metrics in told.values()], weights=samples))
            for name in names
        }
        return {**means, "per_client": {str(client): metrics for client, metrics in sorted(told.items())}}

    def _ask(self, model: EvaluatedModel) -> dict[int, dict[str, float]]:
        arrays = ArrayRecord(self._network.state_dict(model.x, model.buffers))
        question = RecordDict({"arrays": arrays, "config": self._config})
        told: dict[int, dict[str, float]] = {}

        def receive(client: int, content: RecordDict) -> None:
            metrics = self._metrics(content)
            require_names("evaluation", metrics, next(iter(told.values()), metrics))
            told[client] = metrics

        self._directory.ask("evaluate", dict.fromkeys(self._cohort(model.round), question), receive, model.round)
        return told

    def _cohort(self, round_: int) -> list[int]:
        clients = len(self._directory.samples)
        rng = generator(self._seed, Purpose.EVALUATION_COHORT, round_)
        return sorted(rng.choice(clients, max(1, round(self._fraction * clients)), replace=False).tolist())

    def _metrics(self, content: RecordDict) -> dict[str, float]:
        """One client's numbers: those of the only record of metrics in its answer."""
        if len(content.metric_records) != 1:
            raise UnusableError(f"its evaluation has {len(content.metric_records)} records of metrics, not one")
        values = dict(next(iter(content.metric_records.values())))
        samples = whole(values, SAMPLES, 1, self._max_samples)
        return {name: real(values, name) for name in values if name != SAMPLES} | {SAMPLES: samples}
