"""A server that deviates: what it can make clients say about their classes, each tried by an attack."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client.mod import secaggplus_mod

from fedwcm.flower import client_app
from fedwcm.flower.app.options import read
from fedwcm.flower.client.privacy import withholds_metrics
from fedwcm.flower.records import RUN, config_record, without_metrics
from fedwcm.flower.server.deployment import EXPOSED, serve
from fedwcm.privacy.options import PrivacyOptions
from tests.project import ROOT

from .federation import CLIENTS, data, grid, model, run_config, test_data
from .wire import WireGrid

FULL: dict[str, Any] = {"participation.fraction": 1.0}
PRIVATE: list[dict[str, Any]] = [{"privacy.mode": "he"}, {"privacy.epsilon": 1.0}]


def told_metrics(**options: Any) -> list[set[str]]:
    """The numbers in each answer of a round."""
    config = run_config("fedavg", **FULL, **{"run.rounds": 1}, **options)
    nodes, answers = grid(config), []

    def listen(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train.train":
            answers.append(set(reply.content.metric_records["numbers"]))
        return reply

    nodes.mischief = listen
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert (finished.history[0].train_loss is None) == ("loss" not in answers[0])
    return answers


@pytest.mark.parametrize("private", PRIVATE)
def test_a_constant_model_reads_no_class_counts_from_training_accuracies(private: dict[str, Any]) -> None:
    """There are none, unless the operator wants them; without any privacy they are told as ever."""
    assert told_metrics(**private) == [{"lr"}] * CLIENTS
    assert told_metrics(**private, **{"flower.share_metrics": True}) == [{"lr", "loss", "accuracy"}] * CLIENTS
    assert told_metrics() == [{"lr", "loss", "accuracy"}] * CLIENTS


@pytest.mark.parametrize(("shared", "known"), [(True, True), (False, False)])
def test_one_constant_model_for_each_class_would_read_exact_counts(shared: bool, known: bool) -> None:
    """The attack works where the operator asks for metrics, and has nothing to read elsewhere."""
    chosen = {"run.rounds": 1, "local.lr": 1e-9, "local.batch_size": 1000}
    config = run_config("fedavg", **FULL, **chosen, **{"privacy.mode": "he", "flower.share_metrics": shared})
    nodes, counts = grid(config), dict[int, list[int]]()

    def query(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "train.train":
            return reply
        samples, x = len(data({"partition-id": client})[1]), request.content.array_records["model"]["x"].numpy()
        for c in range(10):
            constant = np.zeros_like(x)
            constant[len(x) - 10 + c] = 10.0  # the bias of the last layer
            asked = RecordDict(dict(request.content))
            asked["model"] = ArrayRecord({**request.content.array_records["model"], "x": Array(constant)})
            answer = nodes.node_of(client).handle(Message(asked, request.metadata.dst_node_id, "train.train"))
            accuracy: Any = answer.content.metric_records["numbers"].get("accuracy", np.nan)
            counts.setdefault(client, []).append(-1 if np.isnan(accuracy) else round(accuracy * samples))
        return reply

    nodes.mischief = query
    assert serve(nodes, config, model, test_data) is not None
    for client, found in counts.items():
        own = np.bincount(data({"partition-id": client})[1], minlength=10).tolist()
        assert found == (own if known else [-1] * 10)
    assert len(counts) == CLIENTS


def test_one_update_of_a_model_of_zeros_reads_exact_counts() -> None:
    """As docs/privacy.md says: encryption of the counts does not help against a server that chooses its model."""
    config = run_config("fedwcm", **FULL, **{"run.rounds": 1, "local.batch_size": 1000, "privacy.mode": "he"})
    nodes, exact = grid(config), set[int]()

    def query(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "train.train":
            return reply
        own = np.bincount(data({"partition-id": client})[1], minlength=10)
        sent, message = (request.content.array_records[name] for name in ("model", "message"))
        asked = RecordDict(dict(request.content))
        asked["model"] = ArrayRecord({**sent, "x": Array(np.zeros_like(sent["x"].numpy()))})
        told = nodes.node_of(client).handle(Message(asked, request.metadata.dst_node_id, "train.train"))
        bias = told.content.array_records["upload"]["delta"].numpy()[-10:]
        rate = float(message["alpha"].numpy()) * float(str(told.content.metric_records["numbers"]["lr"]))
        if (np.rint((0.1 + bias / rate) * own.sum()) == own).all():
            exact.add(client)
        return reply

    nodes.mischief = query
    assert serve(nodes, config, model, test_data) is not None
    assert exact == set(range(CLIENTS))


@pytest.mark.parametrize(
    ("node", "run", "shared", "withheld"),
    [
        ({}, {}, False, False),
        ({}, {"mode": "he"}, False, True),
        ({}, {"mode": "he"}, True, False),
        ({"privacy": "he"}, {"mode": "he"}, True, True),
        ({"epsilon": 1.0}, {"epsilon": 1.0}, True, True),
        ({"share-metrics": False}, {}, True, True),
        ({"share-metrics": True}, {"mode": "he"}, False, False),
        ({"privacy": "none"}, {}, False, False),
    ],
)
def test_a_node_has_the_last_word_on_its_metrics(
    node: Mapping[str, Any], run: Mapping[str, Any], shared: bool, withheld: bool
) -> None:
    content = RecordDict({RUN: config_record(read({}).config, False, shared)})
    assert withholds_metrics(content, PrivacyOptions(**run), node) is withheld
    secure = RecordDict({RUN: config_record(read({}).config, True, False)})
    assert withholds_metrics(secure, PrivacyOptions(), {})


def test_a_node_that_withholds_its_metrics_trains_with_the_others() -> None:
    config = run_config("fedavg", **FULL)
    nodes = grid(config, **{"share-metrics": False})
    finished, open_run = serve(nodes, config, model, test_data), serve(grid(config), config, model, test_data)
    assert finished is not None
    assert open_run is not None
    assert finished.history[-1].test_accuracy == open_run.history[-1].test_accuracy
    assert [record.train_loss for record in finished.history] == [None] * 3


@pytest.mark.parametrize("private", [*PRIVATE, {"flower.secure_aggregation": True}])
def test_clients_of_a_private_run_evaluate_no_models(private: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"flower.fraction_evaluate = 0.5 .*flower.share_metrics"):
        read(run_config("fedavg", **private, **{"flower.fraction_evaluate": 0.5}))
    config = run_config("fedavg", **{"privacy.mode": "he"})
    nodes = WireGrid(client_app(model=model, data=data, evaluate=data), config, 1)
    content = {RUN: config_record(read(config).config, False, False), "config": ConfigRecord()}
    asked = RecordDict({**content, "arrays": ArrayRecord(model().state_dict())})
    reply = next(iter(nodes.nodes.values())).handle(Message(asked, next(iter(nodes.nodes)), "evaluate"))
    assert "does not tell how well a model does" in reply.error.reason


def test_a_client_of_an_encrypted_run_shows_no_open_counts() -> None:
    config = run_config("fedavg", **{"privacy.mode": "he"})
    name, node = next(iter(grid(config).nodes.items()))
    asked = RecordDict({RUN: config_record(read(config).config, False, False)})
    assert "does not show its counts" in node.handle(Message(asked, name, "query.counts")).error.reason


def test_the_figure_of_the_warning_is_that_of_the_page() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| FedWCM |"))
    share = row.split("|")[2].strip().replace("%", " %")
    assert f"found {share} of all class counts" in EXPOSED
    assert page.count(f"{share} of all counts") == 2, "with noise, and with encryption"


@pytest.mark.parametrize("secure", [False, True])
def test_a_run_with_encryption_alone_says_that_it_hides_little(
    secure: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = run_config("fedavg", **{"privacy.mode": "he", "run.rounds": 1, **FULL})
    mods = [secaggplus_mod] if secure else []
    nodes = WireGrid(client_app(model=model, data=data, mods=mods), config, CLIENTS)
    assert serve(nodes, {**config, "flower.secure_aggregation": secure}, model, test_data) is not None
    assert (EXPOSED in caplog.text) is not secure


def test_in_an_encrypted_run_no_sums_show_as_many_clients_as_its_own_sums_must_have() -> None:
    encrypted = {"privacy.mode": "he", "privacy.min_contributors": 5}
    assert read(run_config("fedavg", **encrypted)).hiding == 4
    assert read(run_config("fedavg", **{**encrypted, "privacy.min_contributors": 2})).hiding == 2
    assert read(run_config("fedavg")).hiding == 2


def test_a_client_that_keeps_its_loss_to_itself_ends_no_run_that_chooses_by_losses() -> None:
    config = run_config("power-of-choice", **{"run.rounds": 6})
    nodes = grid(config)

    def withhold(client: int, request: Message, reply: Message) -> Message:
        if client == 0 and "numbers" in reply.content.metric_records:
            reply.content = without_metrics(reply.content)
        return reply

    nodes.mischief = withhold
    finished = serve(nodes, config, model, test_data)
    assert finished is not None
    assert all(record.participants == 3 for record in finished.history)
    assert any(0 in (record.clients or ()) for record in finished.history)


@pytest.mark.parametrize("change", ["prior", "target", "options"])
def test_a_client_answers_for_one_class_distribution_and_one_set_of_options_in_a_run(change: str) -> None:
    """Nine scores under different ones would determine its counts, in however few levels each is."""
    config = run_config("fedwcm", **FULL, **{"privacy.mode": "he"})
    nodes, reasons = grid(config), []

    def query(client: int, request: Message, reply: Message) -> Message:
        if client == 0 and request.metadata.message_type == "query.statistics":
            asked = RecordDict(dict(request.content))
            population = dict(asked.config_records["population"])
            if change == "options":
                other = read({**config, "method.name": "fedwcm[score=absolute]"}).config
                asked[RUN] = config_record(other, False, False)
            else:
                population[change] = np.eye(10)[3].tolist()
            asked["population"] = ConfigRecord(population)
            again = nodes.node_of(0).handle(Message(asked, request.metadata.dst_node_id, "query.statistics"))
            reasons.append(again.error.reason if again.has_error() else "")
        return reply

    nodes.mischief = query
    assert serve(nodes, config, model, test_data) is not None
    expected = "options" if change == "options" else "class distribution"
    assert reasons == [reason for reason in reasons if f"the {expected} of this run is not that of" in reason]
    assert reasons


@pytest.mark.parametrize("mode", ["none", "he"])
def test_data_is_read_once_before_round_1_and_once_a_round(mode: str) -> None:
    reads: Counter[int] = Counter()
    builds: list[None] = []

    def counted_data(node_config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        reads[int(node_config["partition-id"])] += 1
        return data(node_config)

    def counted_model() -> Any:
        builds.append(None)
        return model()

    config = run_config("fedwcm", **FULL, **{"privacy.mode": mode})
    nodes = WireGrid(client_app(model=counted_model, data=counted_data), config, CLIENTS)
    assert serve(nodes, config, model, test_data) is not None
    rounds = config["run.rounds"]
    assert reads == dict.fromkeys(range(CLIENTS), 1 + rounds)
    assert len(builds) == CLIENTS * (1 + rounds)
