"""A client's whole data: every sample once, and the gradient of all of it, in chunks of any block."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedwcm.core.batch import Batch, Outputs, Shard
from fedwcm.core.types import Context, State
from fedwcm.engine import oracle
from fedwcm.engine.batches import whole
from fedwcm.losses.cross_entropy import CrossEntropy

from ..factories import Bench, Clusters, clusters, linear, mlp
from ..specimens import FullGradient

LARGE = clusters(sizes=(600, 256, 257, 40, 3), seed=1)
BY_SIZE = [0, 2, 1, 3, 4]


def full_gradient(module: nn.Module, data: Clusters, client: int) -> torch.Tensor:
    rows = data.parts[client]
    loss = cross_entropy(module(torch.from_numpy(data.inputs[rows])), torch.from_numpy(data.labels[rows]))
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("build", [linear, mlp])
def test_the_gradient_is_that_of_the_mean_loss_over_all_local_samples(build: type, stacked: bool) -> None:
    assert max(map(len, LARGE.parts)) > 2 * oracle.CHUNK
    gradients = Bench(FullGradient(), LARGE, build(), stacked=stacked).run("probe", BY_SIZE).upload["full"]
    for row, client in zip(gradients, BY_SIZE, strict=True):
        expected = full_gradient(build(), LARGE, client)
        np.testing.assert_allclose(row.numpy(), expected.numpy(), rtol=1e-11, atol=1e-14)


class Penalised(CrossEntropy):
    """Cross-entropy plus a term that has nothing to do with the samples: the squared bias of the head."""

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[torch.Tensor, State]:
        loss, o = super().__call__(outputs, batch, o, ctx)
        bias = outputs.head(torch.zeros_like(outputs.features[:, :1]))
        return loss + (bias**2).sum(dim=(-1, -2)), o


def test_a_client_that_has_run_out_of_samples_adds_nothing_while_others_go_on() -> None:
    together, apart = (
        Bench(FullGradient(), LARGE, mlp(), stacked=stacked, loss=Penalised()).run("probe", BY_SIZE)
        for stacked in (True, False)
    )
    np.testing.assert_allclose(
        together.upload["full"].numpy(), apart.upload["full"].numpy(), rtol=1e-11, atol=1e-14
    )


def test_the_size_of_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for chunk in (7, 1000):
        monkeypatch.setattr(oracle, "CHUNK", chunk)
        bench = Bench(FullGradient(), LARGE, mlp(), stacked=True)
        results.append(bench.run("probe", BY_SIZE).upload["full"].numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("chunk", [1, 8, 100])
def test_every_sample_of_every_client_comes_once_and_in_order(chunk: int) -> None:
    data = clusters()
    seen: list[list[int]] = [[] for _ in data.parts]
    for batch in whole([data.federation.shard(k) for k in range(5)], chunk):
        assert batch.rows.shape[1] <= chunk
        for k, ids in enumerate(seen):
            real = slice(None) if batch.weight is None else batch.weight[k].bool()
            ids += batch.sample_ids[k][real].tolist()
    assert seen == [part.tolist() for part in data.parts]


def test_clients_with_data_of_their_own_give_what_clients_of_a_shared_set_do() -> None:
    """Under a runtime with real clients, every shard has its own resident samples."""
    data = clusters()
    shared = [data.federation.shard(k) for k in (2, 0)]
    own = [clusters().federation.shard(k) for k in (2, 0)]
    assert own[0].store is not own[1].store
    for mine, theirs in zip(whole(own, 8), whole(shared, 8), strict=True):
        assert torch.equal(mine.labels, theirs.labels)
        real = slice(None) if theirs.weight is None else theirs.weight.bool()
        assert torch.equal(mine.inputs[real], theirs.inputs[real])
        assert torch.equal(mine.sample_ids[real], theirs.sample_ids[real])


def test_a_shard_knows_its_size_and_its_labels() -> None:
    data = clusters()
    shard: Shard = data.federation.shard(3)
    assert len(shard) == 12
    np.testing.assert_array_equal(shard.labels, data.labels[data.parts[3]])
    np.testing.assert_array_equal(data.federation.counts[3], np.bincount(shard.labels, minlength=3))
