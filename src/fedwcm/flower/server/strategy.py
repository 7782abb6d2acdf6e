"""A strategy for an existing Flower app: its own server function stays, its clients train as the method wants."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedwcm.core.checks import unknown
from fedwcm.core.types import State
from fedwcm.experiment.records import RoundRecord
from fedwcm.flower.app.model import ModelFactory
from fedwcm.flower.app.options import read
from fedwcm.flower.server.deployment import Deployment, origin_of
from fedwcm.flower.server.evaluation import SAMPLES, AggregateMetrics, CustomEvaluation

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]

TRAIN_CONFIG = {"lr": "local.lr", "local-epochs": "local.epochs", "batch-size": "local.batch_size"}
"""Keys that apps often have in their train config, and the options they set; dotted keys are options already."""


class Strategy(FedAvg):
    """Any method of this package in place of one of Flower's strategies.

        strategy = fedwcm.flower.Strategy("fedwcm", model=Net, fraction_train=0.5)
        result = strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=10, train_config=…)

    The clients' app calls `fedwcm.flower.add_training(app, model=…, data=…)` in place of its `@app.train()`;
    its `@app.evaluate()` stays as it is.

    Args:
        method: a method or recipe, with options in brackets if needed.
        model: makes the model whose state dict the arrays are.
        fraction_train: share of the clients that trains in a round.
        fraction_evaluate: share of the clients that evaluates the model after a round.
        min_train_nodes: answers that a round needs to change the model.
        min_evaluate_nodes: clients that evaluate it at least.
        min_available_nodes: clients that must be connected before round 1.
        weighted_by_key: the metric of an evaluation that its client is weighted by.
        evaluate_metrics_aggr_fn: makes one record of the clients' evaluations, in place of their means.
        train_metrics_aggr_fn: refused: clients send no metrics of the app's own with their uploads.
        settings: other options under their dotted names, such as `{"local.clip": 10.0, "flower.out": …}`.
    """

    def __init__(
        self,
        method: str = "fedwcm",
        *,
        model: ModelFactory,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 1,
        min_evaluate_nodes: int = 1,
        min_available_nodes: int = 1,
        weighted_by_key: str = SAMPLES,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None,
        train_metrics_aggr_fn: AggregateMetrics | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        if train_metrics_aggr_fn is not None:
            reason = "clients train by the package's own loop, and their loss and accuracy are averaged"
            raise ValueError(f"train_metrics_aggr_fn is not possible: {reason}")
        super().__init__(
            fraction_train,
            fraction_evaluate,
            min_train_nodes,
            min_evaluate_nodes,
            min_available_nodes,
            weighted_by_key,
        )
        self._aggregate = evaluate_metrics_aggr_fn
        self.method, self.model = method, model
        self.settings = dict(settings or {})

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run all rounds; arguments and result are those of Flower's own strategies."""
        result = Result(arrays=initial_arrays)
        evaluated = _Evaluated(evaluate_fn, result)
        evaluated(0, initial_arrays)
        finished = Deployment(
            grid,
            read(self._run_config(num_rounds, timeout, train_config)),
            self.model,
            origin_of(self.model),
            initial=dict(initial_arrays.to_torch_state_dict()),
            evaluation=CustomEvaluation(evaluate_config, self.weighted_by_key, self._aggregate),
            watch=evaluated.watch,
        ).run()
        if finished is None:
            raise ValueError(f"{self.settings.get('flower.out')} holds a finished run: choose another folder")
        result.arrays = ArrayRecord(finished.model)
        for record in finished.history:
            _copy_record(record, result)
        result.evaluate_metrics_serverapp = dict(sorted(result.evaluate_metrics_serverapp.items()))
        return result

    def configure_train(self, *_: object, **__: object) -> Iterable[Message]:
        """Refuse to be driven by another strategy, such as Flower's wrappers for differential privacy."""
        raise NotImplementedError(
            "fedwcm.flower.Strategy runs its own rounds: call its start(). No strategy can be put around it; "
            "aggregation.max_norm clips on the server, and mods such as LocalDpMod add noise on the clients"
        )

    def _run_config(self, rounds: int, timeout: float, train: ConfigRecord | None) -> dict[str, object]:
        train_config = dict(train or {})
        for key in train_config:
            if "." not in key and key not in TRAIN_CONFIG:
                raise unknown("key of the train config:", key, [*TRAIN_CONFIG, "local.lr"])
        return {
            "participation.fraction": self.fraction_train,
            "flower.fraction_evaluate": self.fraction_evaluate,
            "flower.min_clients": self.min_train_nodes,
            "flower.min_evaluate": self.min_evaluate_nodes,
            "flower.min_available": self.min_available_nodes,
            "flower.timeout": float(timeout),
            "run.rounds": rounds,
            **{TRAIN_CONFIG.get(key, key): value for key, value in train_config.items()},
            **self.settings,
            "method.name": self.method,
        }


class _Evaluated:
    """The app's own evaluation on the server, called as Flower calls it; its results are kept."""

    def __init__(self, function: EvaluateFunction | None, result: Result) -> None:
        self._function, self._result = function, result

    def __call__(self, round_: int, arrays: ArrayRecord) -> MetricRecord | None:
        metrics = None if self._function is None else self._function(round_, arrays)
        if metrics is not None:
            self._result.evaluate_metrics_serverapp[round_] = metrics
        return metrics

    def watch(self, round_: int, model: State) -> dict[str, object]:
        """Evaluate a model after a round; the metrics are recorded as `server_NAME`."""
        metrics = self(round_, ArrayRecord(model)) if self._function is not None else None
        return {f"server_{name}": value for name, value in (metrics or {}).items()}


def _copy_record(record: RoundRecord, result: Result) -> None:
    """Copy a round's numbers to where Flower's users look for them."""
    if record.train_loss is not None and record.train_accuracy is not None:
        trained: dict[str, Any] = {"loss": record.train_loss, "accuracy": record.train_accuracy}
        result.train_metrics_clientapp[record.round] = MetricRecord(trained)
    if client_metrics := _with_prefix("clients_", record):
        result.evaluate_metrics_clientapp[record.round] = MetricRecord(client_metrics)
    if tested := _with_prefix("server_", record):  # by this process, or by the one that began the run
        result.evaluate_metrics_serverapp.setdefault(record.round, MetricRecord(tested))


def _with_prefix(prefix: str, record: RoundRecord) -> dict[str, Any]:
    """Return the numbers under names with this prefix; those that a record holds as none were not finite."""
    return {key.removeprefix(prefix): _number(v) for key, v in record.extra.items() if key.startswith(prefix)}


def _number(value: object) -> object:
    if isinstance(value, Sequence):
        return [math.nan if item is None else item for item in value]
    return math.nan if value is None else value
