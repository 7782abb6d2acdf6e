"""Evaluation on the clients, and functions of an app that take the run's config."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from torch import nn
from torch.nn.functional import cross_entropy

from fedwcm.balance import limit_shares
from fedwcm.flower import client_app
from fedwcm.models.mlp import MLP

from .federation import CLIENTS, FULL, counts_of, data, finish, grid, in_simulator, model, test_data
from .wire import delay, edit, honest, strike

EVALUATED: dict[str, Any] = {"participation.fraction": 1.0, "flower.fraction_evaluate": 1.0, "run.rounds": 2}
LIAR = 1


def held_out(node_config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Another client's data, as a stand-in for data that this one does not train on."""
    x, y, _ = data({"partition-id": int(node_config["partition-id"]) + 1})
    return x, y


def evaluated(
    method: str,
    mischief: Any = honest,
    own_data: Any = held_out,
    test: Any = None,
    **changes: Any,
) -> list[Any]:
    """What the clients have measured, round by round; and the model at last."""
    app = client_app(model=model, data=data, evaluate=own_data)
    finished = finish(grid(method, mischief, app=app, **{**EVALUATED, **changes}), evaluate=test)
    network = model()
    network.load_state_dict(finished.model)
    return [*(record.extra for record in finished.history), network]


def test_clients_test_the_model_and_their_metrics_are_weighted_by_known_samples() -> None:
    *_, last, network = evaluated("fedwcm")
    correct, losses, samples = [], [], []
    for client in range(CLIENTS):
        x, y = held_out({"partition-id": client})
        with torch.no_grad():
            logits = network(torch.as_tensor(x))
        labels = torch.as_tensor(y)
        correct.append(int((logits.argmax(dim=1) == labels).sum()))
        losses.append(float(cross_entropy(logits, labels, reduction="sum")))
        samples.append(len(y))
        own_metrics = last["per_client"][str(client)]
        assert own_metrics["num-examples"] == len(y)
        assert own_metrics["accuracy"] == pytest.approx(correct[-1] / len(y))
    trained = [len(data({"partition-id": client})[1]) for client in range(CLIENTS)]
    weights = limit_shares(np.minimum(samples, trained), 0.2)
    for name, totals in {"accuracy": correct, "loss": losses}.items():
        means = np.array(totals) / np.array(samples)
        assert last[f"clients_{name}"] == pytest.approx(np.average(means, weights=weights), rel=1e-5)
        assert last[f"clients_{name}_median"] == pytest.approx(np.median(means), rel=1e-5)


def test_clients_may_test_the_model_for_their_own_class_mix() -> None:
    *_, last, network = evaluated("fedavg", **{"flower.own_mix": True})
    counts = np.stack([counts_of(client) for client in range(CLIENTS)])
    natural = np.maximum(counts.sum(axis=0), 0.5) / np.maximum(counts.sum(axis=0), 0.5).sum()
    for client in range(CLIENTS):
        x, y = held_out({"partition-id": client})
        weights = counts[client] + 10 * natural
        shift = torch.as_tensor(np.log(weights / weights.sum()) - np.log(natural)).float()
        with torch.no_grad():
            loss = cross_entropy(network(torch.as_tensor(x)) + shift, torch.as_tensor(y))
        assert last["per_client"][str(client)]["loss"] == pytest.approx(float(loss), rel=1e-3)


def test_evaluation_on_clients_changes_nothing_in_the_training() -> None:
    first, _, network = evaluated("scaffold", test=test_data, **{"flower.fraction_evaluate": 0.4})
    assert len(first["per_client"]) == 2
    for name, tensor in in_simulator("scaffold", **FULL, **{"run.rounds": 2}).model.items():
        assert torch.equal(network.state_dict()[name], tensor), name


BAD: list[tuple[RecordDict, str]] = [
    (RecordDict(), "its evaluation has 0 records of metrics"),
    (RecordDict({"metrics": MetricRecord({"accuracy": 0.5})}), "its 'num-examples' is missing"),
    (RecordDict({"m": MetricRecord({"num-examples": 10**18, "accuracy": 0.5, "loss": 1.0})}), "num-examples"),
    (RecordDict({"m": MetricRecord({"num-examples": 1, "accuracy": float("nan"), "loss": 1.0})}), "is nan"),
    (RecordDict({"m": MetricRecord({"num-examples": 1, "accuracy": 7.0, "loss": 1.0})}), "from 0 to 1"),
    (RecordDict({"m": MetricRecord({"num-examples": 1, "accuracy": 0.5, "loss": 1e300})}), "'loss' is 1e+300"),
    (RecordDict({"m": MetricRecord({"num-examples": 10**5, "accuracy": 0.5, "loss": 1.0})}), "num-examples"),
    (RecordDict({"m": MetricRecord({"num-examples": 1, "f1": 0.5})}), "its evaluation has ['f1', 'num-ex"),
    (RecordDict({"m": MetricRecord({str(n): 1.0 for n in range(51)})}), "its evaluation has 51 metrics"),
    (RecordDict({"m": MetricRecord({"x" * 81: 1.0})}), "names of up to 80 characters are allowed"),
]


@pytest.mark.parametrize("liar", [0, 1])
def test_a_client_with_bad_metrics_is_left_out_of_the_mean(liar: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also if its answer is the first to come. A round for each kind of bad metrics."""

    def spoil(request: Message, _: Message) -> Message:
        return Message(BAD[int(request.metadata.group_id) - 1][0], reply_to=request)

    *rounds, _ = evaluated("fedavg", strike(spoil, {liar}, "evaluate"), **{"run.rounds": len(BAD)})
    for number, (measured, (_, words)) in enumerate(zip(rounds, BAD, strict=True), start=1):
        assert sorted(measured["per_client"]) == [str(c) for c in range(CLIENTS) if c != liar]
        start = f"round {number}, evaluation: client {liar} is left out: "
        assert any(line.startswith(start) and words in line for line in caplog.messages), words


def test_evaluation_does_not_end_when_enough_clients_for_training_have_answered() -> None:
    hurried = {"run.rounds": 1, "flower.enough": 2, "flower.grace": 1.0}
    measured, _ = evaluated("fedavg", strike(delay(100.0), {4}, "evaluate"), **hurried)
    assert len(measured["per_client"]) == CLIENTS


def test_the_functions_of_an_app_get_the_run_s_config_if_they_want_it() -> None:
    """Server and clients build the model that the app's own key asks for."""

    def wide(run_config: Mapping[str, Any]) -> nn.Module:
        return MLP((1, 8, 8), 10, hidden=(int(run_config["app.hidden"]),))

    def shifted(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Any:
        return data({"partition-id": int(node_config["partition-id"]) + int(run_config["app.shift"])})

    def few(*, run_config: Mapping[str, Any]) -> Any:
        x, y = test_data()
        return x[: 10 * int(run_config["app.hidden"])], y[: 10 * int(run_config["app.hidden"])]

    changes = {"app.hidden": 5, "app.shift": 1, "run.rounds": 1}
    finished = finish(grid("fedavg", app=client_app(model=wide, data=shifted), **changes), wide, few)
    assert finished.model["head.weight"].shape == (10, 5)
    assert np.sum(finished.summary.confusion) == 50  # type: ignore[arg-type]


def test_a_lying_evaluation_moves_the_mean_by_a_bounded_share() -> None:
    def lie(content: RecordDict) -> None:
        numbers: Any = content.metric_records["metrics"]
        numbers["accuracy"], numbers["num-examples"] = 0.0, 10 * numbers["num-examples"]

    ends = [
        evaluated("fedavg", mischief, data, test_data, **{"run.rounds": 6})[-2]
        for mischief in (honest, edit(lie, {LIAR}, "evaluate"))
    ]
    (mean, fooled), own = (e["clients_accuracy"] for e in ends), ends[0]["per_client"][str(LIAR)]["accuracy"]
    assert mean - fooled <= 0.4 * own + 1e-9, "twice an equal share of five"
    accuracies = sorted(each["accuracy"] for each in ends[0]["per_client"].values())
    assert accuracies[1] <= ends[1]["clients_accuracy_median"] <= accuracies[3]


def test_a_client_that_claims_many_training_samples_has_its_share_of_an_evaluation() -> None:
    def lie(content: RecordDict) -> None:
        for record in content.config_records.values():
            if "samples" in record:
                record["samples"] = 10**6
        for numbers in content.metric_records.values():
            if "counts" in numbers:
                numbers["counts"] = [10**5] * 10
            if "num-examples" in numbers:
                numbers["accuracy"], numbers["num-examples"] = 0.0, 10**6

    options = {"run.rounds": 6, "flower.max_samples": 10**6}
    *_, last, _ = evaluated("fedavg", edit(lie, {LIAR}), data, test_data, **options)
    others = [each["accuracy"] for client, each in last["per_client"].items() if client != str(LIAR)]
    assert last["clients_accuracy"] >= 0.6 * min(others) > 0
