"""Evaluation on the clients: each tests the model on its own data and reports a few numbers."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedwcm.balance import limit_shares
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Floats
from fedwcm.engine.network import Network
from fedwcm.engine.options import share_of
from fedwcm.experiment.evaluator import EvaluatedModel
from fedwcm.flower.app.options import AppOptions
from fedwcm.flower.server.answers import LARGEST_LOSS
from fedwcm.flower.server.directory import EVALUATE, ClientDirectory
from fedwcm.flower.untrusted import UnusableError, read_float, read_int, short_repr

LOG = logging.getLogger("flwr.fedwcm")

SAMPLES = "num-examples"
"""Flower's name for the number of samples that a client's metrics are weighted by."""
MOST_TESTED = 10
"""Most test samples of a client, as a multiple of its training samples; its weight in the means depends on it."""
MOST_METRICS, LONGEST_NAME = 50, 80
"""Most metrics of a client, and most characters of a name: all of them are recorded."""

Metrics = dict[str, float]
AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]
"""Makes one record of the clients' metrics and the name of their weight, as in Flower's strategies."""


@dataclass(frozen=True, eq=False)
class CustomEvaluation:
    """What an app asks of evaluations on its clients.

    Args:
        config: what clients are sent besides the model.
        weighted_by_key: the metric that clients are weighted by: a number of samples.
        aggregate: takes the place of means and medians.
    """

    config: ConfigRecord | None = None
    weighted_by_key: str = SAMPLES
    aggregate: AggregateMetrics | None = None


class ClientEvaluation:
    """Asks a share of the clients, drawn anew each time, to test a model, with messages in Flower's own format.

    Args:
        directory: the clients.
        network: the server's model.
        options: share and least number of the clients that are asked, seed, largest share of a client in a mean.
        custom: what an app asks for that Flower's strategies also take.
        mix: the class distributions that the model presupposes and that it was trained on, for tests for each
            client's own (`flower.own_mix`).
    """

    def __init__(
        self,
        directory: ClientDirectory,
        network: Network,
        options: AppOptions,
        custom: CustomEvaluation,
        mix: tuple[Floats, Floats] | None = None,
    ) -> None:
        self._directory, self._network, self._custom = directory, network, custom
        self._federation, self._seed = options.federation, options.config.run.seed
        self._max_share = options.config.aggregation.max_share
        self._mix = None
        if mix is not None:
            self._mix = ConfigRecord({"assumed": mix[0].tolist(), "natural": mix[1].tolist()})

    def __call__(self, model: EvaluatedModel) -> dict[str, object]:
        """Return mean and median of each metric as `clients_NAME` and `clients_NAME_median`, and each client's.

        Clients are weighted by the samples that they tested on, up to as many as they train on, and to the largest
        share that the run allows: one that lies moves the mean by no more than that share.
        """
        metrics_of, key = _keep_common(self._ask(model), model.round), self._custom.weighted_by_key
        if not metrics_of:
            return {}
        each = {"per_client": {str(client): metrics for client, metrics in sorted(metrics_of.items())}}
        if self._custom.aggregate is not None:
            replies = [RecordDict({"metrics": MetricRecord(dict(metrics))}) for metrics in metrics_of.values()]
            own = dict(self._custom.aggregate(replies, key))
            return {**{f"clients_{name}": value for name, value in own.items()}, **each}
        tested = np.array([metrics[key] for metrics in metrics_of.values()], dtype=float)
        known = np.minimum(tested, self._directory.samples[list(metrics_of)])
        weights = known if self._max_share is None else limit_shares(known, self._max_share)
        names = [name for name in next(iter(metrics_of.values())) if name != key]
        means: dict[str, object] = {}
        for name in names:
            values = [metrics[name] for metrics in metrics_of.values()]
            means[f"clients_{name}"] = float(np.average(values, weights=weights))
            means[f"clients_{name}_median"] = float(np.median(values))
        return {**means, **each}

    def _ask(self, model: EvaluatedModel) -> dict[int, Metrics]:
        arrays = ArrayRecord(self._network.state_dict(model.x, model.buffers))
        question = RecordDict({"arrays": arrays, "config": self._custom.config or ConfigRecord()})
        if self._mix is not None:
            question["mix"] = self._mix
        metrics_of: dict[int, Metrics] = {}

        def receive(client: int, content: RecordDict) -> None:
            most = MOST_TESTED * int(self._directory.samples[client])
            metrics_of[client] = _read_metrics(content, self._custom.weighted_by_key, most)

        questions = dict.fromkeys(self._cohort(model.round), question)
        self._directory.ask(EVALUATE, questions, receive, model.round, all_needed=True)
        return metrics_of

    def _cohort(self, round_: int) -> list[int]:
        clients = len(self._directory.samples)
        rng = generator(self._seed, Purpose.EVALUATION_COHORT, round_)
        wanted_clients = max(share_of(clients, self._federation.fraction_evaluate), self._federation.min_evaluate)
        return sorted(rng.choice(clients, min(wanted_clients, clients), replace=False).tolist())


def _read_metrics(content: RecordDict, key: str, most_samples: int) -> Metrics:
    """Return one client's numbers: those of the only record of metrics in its answer."""
    if len(content.metric_records) != 1:
        raise UnusableError(f"its evaluation has {len(content.metric_records)} records of metrics, not one")
    values = dict(next(iter(content.metric_records.values())))
    if len(values) > MOST_METRICS or any(len(name) > LONGEST_NAME for name in values):
        raise UnusableError(
            f"its evaluation has {len(values)} metrics, {short_repr(sorted(values))}: "
            f"at most {MOST_METRICS} with names of up to {LONGEST_NAME} characters are allowed"
        )
    samples = read_int(values, key, 1, most_samples)
    bounds = {name: (-LARGEST_LOSS, LARGEST_LOSS) for name in values if name != key}
    if "accuracy" in bounds:
        bounds["accuracy"] = (0.0, 1.0)
    return {name: read_float(values, name, *bounds[name]) for name in bounds} | {key: samples}


def _keep_common(metrics_of: dict[int, Metrics], round_: int) -> dict[int, Metrics]:
    """Return the answers with the metrics that most clients have: no single client decides what is measured."""
    votes = Counter(frozenset(metrics_of[client]) for client in sorted(metrics_of))
    common = max(votes, key=votes.__getitem__, default=frozenset())
    for client in sorted(metrics_of):
        if metrics_of[client].keys() != common:
            own, usual = short_repr(sorted(metrics_of[client])), short_repr(sorted(common))
            reason = f"its evaluation has {own}, most have {usual}"
            LOG.warning("round %d, evaluation: client %d is left out: %s", round_, client, reason)
    return {client: metrics for client, metrics in metrics_of.items() if metrics.keys() == common}
