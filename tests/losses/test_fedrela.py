"""Relabelling: who may be given another label, and that all engines train on the same labels."""

from typing import Any

import numpy as np
import torch

from fedwcm.core.method import Method
from fedwcm.core.types import Floats
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.losses.fedrela import FedReLaLoss, relabel
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedrela import FedReLa
from tests.factories import clusters, make_rounds, make_trainer, mlp, run_rounds


def test_only_frequent_classes_give_up_samples_and_only_those_that_stand_out() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [200, 60, 10])
    p = rng.dirichlet(np.ones(3), size=len(y))
    p[:5] = [0.0, 0.0, 1.0]  # five samples of the most frequent class look like the rarest
    new = relabel(p, y, 0.05, rng)
    changed = np.flatnonzero(new != y)
    counts = np.bincount(y)
    assert len(changed)
    assert (counts[new[changed]] < counts[y[changed]]).all()
    assert len(changed) <= 2 * 0.05 * len(y)  # the share for each of the two rarer classes
    everything = relabel(p, y, 1.0, np.random.default_rng(1))  # all but the smallest z exceed the limits
    assert (everything != y).mean() > 0.3 > (new != y).mean()
    assert (relabel(p, np.repeat([0, 1, 2], 90), 0.05, rng) == np.repeat([0, 1, 2], 90)).all()  # even counts


class Fixed:
    """In place of a generator of random numbers: always the same one."""

    def random(self, shape: tuple[int, ...]) -> Floats:
        return np.full(shape, 0.5)


def test_the_rarest_class_is_preferred_in_proportion_to_the_range_of_the_counts() -> None:
    y = np.repeat([0, 1, 2], [60, 40, 20])
    p = np.full((120, 3), 1 / 3)
    p[:3] += [[-0.9, 0.0, 0.9], [-0.9, 0.9, 0.0], [-0.9, 0.0, 0.9]]
    new = relabel(p, y, 0.0, np.random.default_rng(0))
    assert (new == y).all()  # nothing exceeds the largest
    rng: Any = Fixed()
    new = relabel(p, y, 0.1, rng)  # a rarity of 1 from the most frequent to the rarest, of 1/2 to the one between
    assert new[:3].tolist() == [2, 0, 2]
    assert (new[3:] == y[3:]).all()


def played(method: Method, loss: CrossEntropy, stacked: bool = True) -> tuple[Rounds, torch.Tensor]:
    data = clusters()
    training = make_trainer(method, data.federation, mlp(), stacked=stacked, loss=loss)
    simulated = make_rounds(training, data.federation, block=64 if stacked else 1)
    return simulated, run_rounds(simulated, 3)[-1][0].x


def test_before_its_start_it_is_fedavg_and_afterwards_not() -> None:
    plain = played(FedAvg(), CrossEntropy())[1]
    assert torch.equal(played(FedReLa(start=1.0), FedReLaLoss())[1], plain)
    early = FedReLa(start=0.0, slowdown=1.0)
    torch.testing.assert_close(played(early, CrossEntropy())[1], plain)
    assert not torch.allclose(played(early, FedReLaLoss(threshold=0.3))[1], plain, atol=1e-4)


def test_one_at_a_time_and_stacked_clients_have_the_same_labels() -> None:
    early, loss = FedReLa(start=0.0, slowdown=1.0), FedReLaLoss(threshold=0.3)
    torch.testing.assert_close(played(early, loss)[1], played(early, loss, stacked=False)[1], rtol=1e-5, atol=1e-6)


def test_the_kept_model_stays_and_steps_slow_down() -> None:
    data = clusters()
    training = make_trainer(FedReLa(start=0.1), data.federation, mlp(), loss=FedReLaLoss())
    states = [state for state, _ in run_rounds(make_rounds(training, data.federation), 3)]
    first = training.method.first_round(training.population)  # type: ignore[attr-defined]
    assert first == 1
    assert all(torch.equal(state.method["labeller"], states[0].x) for state in states)
    before = Network(mlp()).initial()[0]
    fast, slow = float((states[0].x - before).norm()), float((states[1].x - states[0].x).norm())
    assert slow < 0.5 * fast
