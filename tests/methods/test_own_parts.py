"""Parts of the model, and statistics, that stay with the client; class means of trained models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedwcm
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Floats
from fedwcm.engine.client import BUFFERS
from fedwcm.engine.rounds import Rounds
from fedwcm.losses.fedproto import FedProtoLoss
from fedwcm.methods.fedbn import FedBN
from fedwcm.methods.fedper import FedPer
from fedwcm.methods.fedproto import FedProto
from tests import factories

EPOCHS, BATCH, LR, SEED = 2, 8, 0.1, 5


def normalised(classes: int = factories.CLASSES) -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Linear(factories.FEATURES, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes)]
    return nn.Sequential(*layers).double()


def engine(data: factories.Clusters, module: nn.Module) -> Rounds:
    training = factories.make_trainer(FedBN(), data.federation, module, epochs=EPOCHS, batch_size=BATCH, seed=SEED)
    return factories.make_rounds(training, data.federation, lr=LR)


def test_one_client_with_its_own_normalisation_trains_as_if_alone() -> None:
    """Two rounds of one client are four epochs of plain torch: nothing of its normalisation starts again."""
    data, rounds = factories.clusters(sizes=(24,)), 2
    simulated = engine(data, normalised())
    last, _ = factories.run_rounds(simulated, rounds)[-1]
    alone = normalised().train()
    descent = torch.optim.SGD(alone.parameters(), lr=LR)
    part = data.parts[0]
    for r in range(rounds):
        rng = generator(SEED, Purpose.BATCHES, r, 0)
        for order in [part[rng.permutation(len(part))] for _ in range(EPOCHS)]:
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                descent.zero_grad()
                logits = alone(torch.from_numpy(data.inputs[rows]))
                nn.functional.cross_entropy(logits, torch.from_numpy(data.labels[rows])).backward()
                descent.step()
    c = simulated.store.read(np.array([0]), torch.device("cpu"))
    network = simulated.trainer.forward.network
    own = FedBN().eval_clients(last.x, {}, c, network.layout)[0]
    for name, tensor in network.layout.unflatten(own).items():
        torch.testing.assert_close(tensor, alone.get_parameter(name).detach())
    for name, tensor in network.buffer_layout.unflatten(c[BUFFERS][0]).items():
        torch.testing.assert_close(tensor, alone.get_buffer(name))


def test_scales_and_shifts_stay_with_the_clients() -> None:
    data = factories.clusters(sizes=(24, 16, 30, 12, 20))
    simulated = engine(data, normalised())
    first = simulated.trainer.forward.network.initial()[0].clone()
    last, _ = factories.run_rounds(simulated, 2)[-1]
    c = simulated.store.read(np.arange(5), torch.device("cpu"))
    assert c["own"].shape == (5, 12)
    for part in simulated.trainer.forward.network.layout.slices:
        kept = part.name in ("1.weight", "1.bias")
        assert torch.equal(part.of(first), part.of(last.x)) == kept
    assert len(c["own"].unique(dim=0)) == len(c[BUFFERS].unique(dim=0)) == 5


def test_clients_with_other_units_are_measured_with_their_own_normalisation(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y, client = np.arange(480) % 2, np.arange(480) // 60
    x = rng.normal(size=(480, 4)) + 2.0 * y[:, None]
    x = x * (1.0 + client[:, None]) + 20.0 * client[:, None]
    held = np.arange(480) % 3 == 0
    rows = {
        f"{key}_{part}": v[on]
        for part, on in (("train", ~held), ("test", held))
        for key, v in (("x", x), ("y", y), ("client", client))
    }
    np.savez(tmp_path / "rows.npz", **rows)

    def accuracy(method: str) -> float:
        result = fedwcm.run(
            method,
            dataset=str(tmp_path / "rows.npz"),
            model=normalised(2).float(),
            rounds=10,
            participation=1.0,
            eval_every=10,
            settings={"local.batch_size": 10},
        )
        mean = result.history[-1].client_mean
        assert mean is not None
        return mean

    assert accuracy("fedbn") > accuracy("fedavg") + 0.1


@pytest.mark.parametrize(("method", "needs"), [("fedbn", "normalise"), ("fedper", "final linear layer")])
def test_a_model_without_such_parts_is_refused(method: str, needs: str) -> None:
    module = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()) if method == "fedper" else "mlp"
    with pytest.raises(ValueError, match=needs):
        fedwcm.run(method, dataset="digits", model=module, rounds=1)


def test_class_means_are_those_of_the_trained_models() -> None:
    data = factories.clusters()
    training = factories.make_trainer(
        FedProto(), data.federation, factories.mlp(), loss=FedProtoLoss(pull=0.5), stacked=True
    )
    simulated = factories.make_rounds(training, data.federation, block=64)
    first, (last, _) = training.forward.network.initial()[0], factories.run_rounds(simulated, 2)[-1]
    assert torch.equal(first, last.x)
    own = simulated.store.read(np.arange(5), torch.device("cpu"))["own"]
    sums, counts = 0.0, np.zeros(factories.CLASSES)
    for client, part in enumerate(data.parts):
        outputs = training.forward(own[[client]], torch.from_numpy(data.inputs[part])[None], track=False)
        members = np.eye(factories.CLASSES)[data.labels[part]]
        sums, counts = sums + members.T @ outputs.features[0].detach().numpy(), counts + members.sum(axis=0)
    np.testing.assert_allclose(last.method["means"].numpy(), sums / counts[:, None], rtol=1e-10)
    assert FedPer().own_slices(training.forward.network.layout)


def test_a_class_with_one_sample_has_it_as_its_mean() -> None:
    class Sent:
        def sum(self, key: str, weights: Floats) -> torch.Tensor:
            whole = {"class_sums": [[2.0, 4.0], [6.0, 9.0], [0.0, 0.0]], "class_counts": [1.0, 3.0, 0.0]}
            return torch.tensor(whole[key])

    uploads: Any = Sent()
    cohort: Any = range(2)
    _, state = FedProto().update(torch.zeros(1), {}, uploads, cohort)
    assert state["means"].tolist() == [[2.0, 4.0], [2.0, 3.0], [0.0, 0.0]]
    assert state["known"].tolist() == [1.0, 1.0, 0.0]
