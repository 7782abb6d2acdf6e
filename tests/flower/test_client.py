"""A client: numbered by its node's config, refusing data and requests that cannot be right."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedwcm.config.settings import from_settings
from fedwcm.flower import Strategy, add_training, client_app
from fedwcm.flower.app.model import architecture, network, shard, tensors
from fedwcm.flower.app.options import read
from fedwcm.flower.client.app import client_id
from fedwcm.flower.client.state import state_file, write_states
from fedwcm.flower.info import Admission, ClientInfo
from fedwcm.flower.records import RequestId
from fedwcm.flower.server.directory import ClientDirectory, NodeBinding
from fedwcm.flower.untrusted import UnusableError
from fedwcm.models.mlp import MLP

from .federation import CLIENTS, FULL, assert_same_model, data, finish, grid, in_simulator, model, on_flower
from .wire import WireGrid, strike

CPU = torch.device("cpu")


@pytest.mark.parametrize("config", [{"partition-id": 3}, {"client-id": 3}, {"client-id": 3, "partition-id": 0}])
def test_a_client_s_number_comes_from_its_node_s_config(config: Mapping[str, Any]) -> None:
    assert client_id(config) == 3


@pytest.mark.parametrize("config", [{}, {"partition-id": "three"}, {"client-id": -1}, {"partition-id": True}])
def test_a_client_without_a_number_says_what_is_missing(config: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="-id"):
        client_id(config)


def test_inputs_may_be_arrays_or_tensors_of_any_precision() -> None:
    x, y = np.random.default_rng(0).normal(size=(4, 3)), [0, 1, 1, 0]
    for samples in [(x, np.array(y)), (torch.from_numpy(x), torch.tensor(y)), (x.astype(np.float32), y)]:
        made = tensors(samples, CPU)
        assert made.inputs.dtype == torch.float32
        assert made.labels.dtype == torch.int64
        np.testing.assert_array_equal(made.inputs.numpy(), x.astype(np.float32))
    assert tensors((np.arange(6).reshape(2, 3), [0, 1]), CPU).inputs.dtype == torch.int64


@pytest.mark.parametrize(
    "samples",
    [
        (np.zeros((3, 2)), np.zeros(2, dtype=int)),
        (np.zeros((3, 2)), np.zeros(3)),
        (np.zeros((3, 2)), np.zeros((3, 1), dtype=int)),
        (np.zeros((0, 2)), np.zeros(0, dtype=int)),
    ],
)
def test_labels_that_do_not_fit_the_inputs_are_refused(samples: Any) -> None:
    with pytest.raises(ValueError, match="one whole number per sample"):
        tensors(samples, CPU)


def test_labels_outside_the_model_s_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="from 1 to 3: they must be from 0 to 2"):
        shard(tensors((np.zeros((2, 2)), [1, 3]), CPU), classes=3)


def test_samples_keep_the_numbers_that_they_are_given() -> None:
    made = shard(tensors((np.zeros((2, 2)), [0, 1]), CPU), 2, [40, 7])
    assert made.store.sample_ids.tolist() == [40, 7]
    with pytest.raises(ValueError, match="3 numbers of samples for 2 samples"):
        shard(tensors((np.zeros((2, 2)), [0, 1]), CPU), 2, [1, 2, 3])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: MLP((1, 8, 8), 11, hidden=(8,)), "'head.weight: (11, 8)' instead of 'head.weight: (10, 8)'"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "'0: Flatten' instead of 'body: Sequential'"),
    ],
)
def test_a_client_with_another_model_is_not_used(
    other: Callable[[], nn.Module], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = grid("fedavg", **{"run.rounds": 1})
    last = max(nodes.nodes)
    nodes.nodes[last].app = client_app(model=other, data=data)
    finish(nodes)
    assert f"node {last} is not used: its model differs from the server's: {message}" in caplog.messages


def test_without_a_number_of_clients_those_who_are_there_take_part() -> None:
    assert_same_model(in_simulator("scaffold"), on_flower("scaffold", **{"flower.clients": 0}))


UNKNOWN: dict[str, Any] = {**FULL, "flower.clients": 0, "flower.patience": 300.0}


def at_the_fifth_look(nodes: WireGrid, happen: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Something happens while the server waits for clients."""
    online, looks = nodes.get_node_ids, count(1)

    def connected() -> list[int]:
        if next(looks) == 5:
            happen()
        return online()

    patch.setattr(nodes, "get_node_ids", connected)


def test_a_gap_in_the_numbers_costs_the_clients_beyond_it_and_not_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = grid("fedavg", **{**UNKNOWN, "flower.patience": 0.0})
    nodes.node_of(2).online = False
    finished = finish(nodes)
    assert finished.history[-1].clients == (0, 1, 3)
    assert "it claims to be client 4: 0 to 3 are allowed; set flower.clients" in caplog.text


def test_a_client_that_closes_the_gap_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With flower.clients = 0 clients connect in any order."""
    nodes = grid("fedavg", **UNKNOWN)
    nodes.node_of(1).online = False
    at_the_fifth_look(nodes, lambda: setattr(nodes.node_of(1), "online", True), monkeypatch)
    assert finish(nodes).history[0].participants == CLIENTS


def test_a_number_that_was_corrected_while_the_run_waits_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 2 was started as client 7, which leaves a gap."""
    nodes = grid("fedavg", clients=2, **UNKNOWN)
    wrong = nodes.nodes[nodes.start(7)]

    def correct() -> None:
        wrong.online = False
        nodes.start(2)

    at_the_fifth_look(nodes, correct, monkeypatch)
    assert finish(nodes).history[0].clients == (0, 1, 2)


def about(shape: tuple[int, ...], **changes: Any) -> RecordDict:
    own = network(model, from_settings({"run.device": "cpu"}))
    facts = {"client": 0, "samples": 5, "classes": 10, "input_dtype": "float32", "version": "1", **changes}
    return ClientInfo(input_shape=shape, model=tuple(architecture(own)), **facts).records()


@pytest.fixture
def admission() -> Admission:
    """What clients must have in common with a server without test data."""
    return Admission(network(model, from_settings({"run.device": "cpu"})), "1", 10)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2**22 + 1,), "at most 4,194,304 numbers"),
        ((1,) * 70, "the server's model does not take inputs of shape"),
        ((3, 5), "the server's model does not take inputs of shape"),
    ],
)
def test_without_test_data_the_server_tries_no_input_that_is_too_large(
    shape: tuple[int, ...], message: str, admission: Admission
) -> None:
    with pytest.raises(UnusableError, match=message):
        admission.read(about(shape))


def test_without_test_data_all_clients_have_inputs_like_most(admission: Admission) -> None:
    """A model may take several shapes; the rounds are planned for one."""
    usual, other = admission.read(about((1, 8, 8))), admission.read(about((64,), client=1))
    with pytest.raises(UnusableError, match=r"are \(\(64,\), 'float32'\), those of most clients \(\(1, 8, 8\)"):
        admission.require_inputs_of(other, usual)


class HalfFrozen(nn.Module):
    """A frozen layer below a trained one."""

    def __init__(self, backbone: float = 0.1) -> None:
        super().__init__()
        self.flat, self.backbone, self.head = nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10)
        for parameter in self.backbone.parameters():
            nn.init.constant_(parameter.requires_grad_(False), backbone)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.backbone(self.flat(inputs))))


@pytest.mark.parametrize(("server", "taken"), [(0.1, True), (0.1 * (1 + 1e-6), True), (0.25, False)])
def test_clients_must_have_the_frozen_parameters_of_the_initial_arrays(
    server: float, taken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They are not sent; other machines may draw them with other last digits."""
    app = add_training(ClientApp(), model=HalfFrozen, data=data)
    settings = {"flower.clients": CLIENTS, "flower.patience": 0.0}
    strategy = Strategy("fedavg", model=HalfFrozen, fraction_evaluate=0.0, settings=settings)
    arrays = ArrayRecord(HalfFrozen(server).state_dict())
    with nullcontext() if taken else pytest.raises(RuntimeError, match="0 clients connected"):
        strategy.start(WireGrid(app, {}, CLIENTS), arrays, num_rounds=1)
    refused = [line for line in caplog.messages if "its frozen parameter 'backbone.weight' differs" in line]
    assert len(refused) == (0 if taken else CLIENTS)


def test_ten_thousand_clients_are_taken_in_and_compared_in_no_quadratic_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them claims too many samples. Each compared with all others took minutes."""
    many, node_of_0, liar = 10_000, 10**6, 7

    class Answers:
        def online(self) -> set[int]:
            return set(range(node_of_0, node_of_0 + many))

        def busy(self, online: set[int]) -> dict[int, Any]:
            return {}

        def ask(
            self, kind: str, contents: Mapping[int, Any], receive: Callable[..., None], *_: Any
        ) -> dict[int, Any]:
            for node in contents:
                receive(node, node - node_of_0)
            return {}

    class Everybody:
        require_inputs_of = staticmethod(lambda *_: None)

        def read(self, client: int) -> ClientInfo:
            return ClientInfo(client, 10**4 if client == liar else 50 + client % 100, 10, (4,), "float32", (), "1")

    monkeypatch.setattr("fedwcm.flower.server.directory.NodeExchange", lambda grid: Answers())
    options, binding = read({"flower.clients": many, "flower.patience": 0.0}), NodeBinding(True, tmp_path)
    directory = ClientDirectory(cast(Any, None), options, cast(Admission, Everybody()), binding)
    began, answered = time.process_time(), []
    directory.wait()
    left_out = directory.ask("query", dict.fromkeys(range(many), RecordDict()), lambda c, _: answered.append(c), 1)
    assert time.process_time() - began < 5
    assert len(answered) == many - 1
    assert list(left_out) == [liar]
    assert len(NodeBinding(True, tmp_path)._nodes) == many


def test_what_a_client_keeps_between_rounds_is_for_its_owner_only(tmp_path: Path) -> None:
    context = Context(1, 2, {"state-dir": str(tmp_path)}, RecordDict(), {})
    write_states(state_file(context, RequestId("train", 1, 0, "a")), {1: {"control": torch.zeros(2)}})
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_server_makes_a_client_keep_its_state_under_one_name_in_a_run(tmp_path: Path) -> None:
    """Each name is a file of the size of a model."""
    nodes = grid("scaffold", **FULL, **{"run.rounds": 1}, node={"state-dir": str(tmp_path)})
    reasons: list[str] = []

    def rename(request: Message, reply: Message) -> Message:
        asked = ConfigRecord({**request.content.config_records["asked"], "run_id": "another"})
        reasons.append(str(nodes.ask_again(request, asked=asked).error.reason))
        return reply

    nodes.mischief = strike(rename, {0}, "train.train")
    finish(nodes)
    assert "the name of this run is not that of earlier messages" in reasons[0]
    assert len(list(tmp_path.iterdir())) == CLIENTS
