"""A server that deviates: what it can make clients say about their classes, each tried by an attack."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from fedwcm.flower import client_app
from fedwcm.flower.app.options import read
from fedwcm.flower.client.privacy import withholds_metrics
from fedwcm.flower.records import RUN, config_record, without_metrics
from fedwcm.flower.server.deployment import EXPOSED
from fedwcm.privacy.options import PrivacyOptions
from tests.project import ROOT

from .federation import CLIENTS, FULL, counts_of, data, finish, grid, model, on_flower, run_config
from .wire import strike

TRAIN = "train.train"
PRIVATE: list[dict[str, Any]] = [{"privacy.mode": "he"}, {"privacy.epsilon": 1.0}]


def told_metrics(**options: Any) -> list[set[str]]:
    """The numbers in each answer of a round."""
    answers: list[set[str]] = []

    def listen(_: Message, reply: Message) -> Message:
        answers.append(set(reply.content.metric_records["numbers"]))
        return reply

    (record,) = on_flower("fedavg", strike(listen, kind=TRAIN), **FULL, **{"run.rounds": 1}, **options).history
    assert (record.train_loss is None) == ("loss" not in answers[0])
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
    chosen = {"run.rounds": 1, "local.lr": 1e-9, "local.batch_size": 1000, "flower.share_metrics": shared}
    nodes, counts = grid("fedavg", **FULL, **chosen, **{"privacy.mode": "he"}), dict[int, list[int]]()

    def query(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type != TRAIN:
            return reply
        sent = request.content.array_records["model"]
        for c in range(10):
            constant = np.zeros_like(sent["x"].numpy())
            constant[len(constant) - 10 + c] = 10.0  # the bias of the last layer
            answer = nodes.ask_again(request, model=ArrayRecord({**sent, "x": Array(constant)}))
            accuracy: Any = answer.content.metric_records["numbers"].get("accuracy", np.nan)
            samples = counts_of(client).sum()
            counts.setdefault(client, []).append(-1 if np.isnan(accuracy) else round(accuracy * samples))
        return reply

    nodes.mischief = query
    finish(nodes)
    for client, read_counts in counts.items():
        assert read_counts == (counts_of(client).tolist() if known else [-1] * 10)
    assert len(counts) == CLIENTS


def test_one_update_of_a_model_of_zeros_reads_exact_counts() -> None:
    """As docs/privacy.md says: encryption of the counts does not help against a server that chooses its model."""
    nodes = grid("fedwcm", **FULL, **{"run.rounds": 1, "local.batch_size": 1000, "privacy.mode": "he"})
    exact = set[int]()

    def query(client: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type != TRAIN:
            return reply
        own, sent = counts_of(client), request.content.array_records["model"]
        answer = nodes.ask_again(
            request, model=ArrayRecord({**sent, "x": Array(np.zeros_like(sent["x"].numpy()))})
        )
        bias = answer.content.array_records["upload"]["delta"].numpy()[-10:]
        alpha = float(request.content.array_records["message"]["alpha"].numpy())
        rate = alpha * float(str(answer.content.metric_records["numbers"]["lr"]))
        if (np.rint((0.1 + bias / rate) * own.sum()) == own).all():
            exact.add(client)
        return reply

    nodes.mischief = query
    finish(nodes)
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
    nodes = grid("fedavg", **FULL, node={"share-metrics": False})
    finished, open_run = finish(nodes), finish(grid("fedavg", **FULL))
    assert finished.history[-1].test_accuracy == open_run.history[-1].test_accuracy
    assert [record.train_loss for record in finished.history] == [None] * 3


@pytest.mark.parametrize("private", [*PRIVATE, {"flower.secure_aggregation": True}])
def test_clients_of_a_private_run_evaluate_no_models(private: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"flower.fraction_evaluate = 0.5 .*flower.share_metrics"):
        read(run_config("fedavg", **private, **{"flower.fraction_evaluate": 0.5}))
    app = client_app(model=model, data=data, evaluate=data)
    reply = ask_one(app, "evaluate", config=ConfigRecord(), arrays=ArrayRecord(model().state_dict()))
    assert "does not tell how well a model does" in reply.error.reason


def ask_one(app: ClientApp | None, kind: str, **records: Any) -> Message:
    """The answer of a client of an encrypted run."""
    nodes = grid("fedavg", app=app, clients=1, **{"privacy.mode": "he"})
    run = config_record(read(nodes.run_config).config, False, False)
    name, node = next(iter(nodes.nodes.items()))
    return node.handle(Message(RecordDict({RUN: run, **records}), name, kind))


def test_a_client_of_an_encrypted_run_shows_no_open_counts() -> None:
    assert "does not show its counts" in ask_one(None, "query.counts").error.reason


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
    app = client_app(model=model, data=data, mods=[secaggplus_mod] if secure else [])
    changes: Any = {"privacy.mode": "he", "run.rounds": 1, "flower.secure_aggregation": secure}
    finish(grid("fedavg", app=app, **FULL, **changes))
    assert (EXPOSED in caplog.text) is not secure


def test_in_an_encrypted_run_no_sums_show_as_many_clients_as_its_own_sums_must_have() -> None:
    encrypted = {"privacy.mode": "he", "privacy.min_contributors": 5}
    assert read(run_config("fedavg", **encrypted)).hiding == 4
    assert read(run_config("fedavg", **{**encrypted, "privacy.min_contributors": 2})).hiding == 2
    assert read(run_config("fedavg")).hiding == 2


def test_a_client_that_keeps_its_loss_to_itself_ends_no_run_that_chooses_by_losses() -> None:

    def withhold(_: Message, reply: Message) -> Message:
        if "numbers" in reply.content.metric_records:
            reply.content = without_metrics(reply.content)
        return reply

    finished = on_flower("power-of-choice", strike(withhold, {0}), **{"run.rounds": 6})
    assert all(record.participants == 3 for record in finished.history)
    assert any(0 in (record.clients or ()) for record in finished.history)


@pytest.mark.parametrize("change", ["prior", "target", "options"])
def test_a_client_answers_for_one_class_distribution_and_one_set_of_options_in_a_run(change: str) -> None:
    """Nine scores under different ones would determine its counts, in however few levels each is."""
    nodes, reasons = grid("fedwcm", **FULL, **{"privacy.mode": "he", "run.rounds": 1}), []

    def query(request: Message, reply: Message) -> Message:
        population = request.content.config_records["population"]
        if change == "options":
            other = read({**nodes.run_config, "method.name": "fedwcm[score=absolute]"}).config
            again = nodes.ask_again(request, **{RUN: config_record(other, False, False)})
        else:
            changed = ConfigRecord({**population, change: np.eye(10)[3].tolist()})
            again = nodes.ask_again(request, population=changed)
        reasons.append(again.error.reason if again.has_error() else "")
        return reply

    nodes.mischief = strike(query, {0}, "query.statistics")
    finish(nodes)
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

    app = client_app(model=counted_model, data=counted_data)
    finish(grid("fedwcm", app=app, **FULL, **{"privacy.mode": mode, "run.rounds": 2}))
    assert reads == dict.fromkeys(range(CLIENTS), 1 + 2)
    assert len(builds) == CLIENTS * (1 + 2)
