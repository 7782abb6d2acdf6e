"""Small federations, models and engines for tests, in float64 wherever exactness helps."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwcm.balance import local_deviations
from fedwcm.core.batch import InMemoryFederation
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method, ServerTraining, TwoPhase
from fedwcm.core.types import Cohort, Ints, Population, State
from fedwcm.engine.backends.in_process import Backend, InProcess
from fedwcm.engine.backends.plan import stacked_forward
from fedwcm.engine.backends.processes import Processes
from fedwcm.engine.batches import Augmentation
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates, Task
from fedwcm.engine.forward import SequentialForward
from fedwcm.engine.network import Network
from fedwcm.engine.options import Aggregation, LearningRate, OptimizerOptions, ParticipationOptions
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.engine.server import RoundMeasures, RoundResult, update
from fedwcm.engine.server_data import ServerSamples
from fedwcm.engine.store import ClientStore
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.samplers.uniform import Uniform

SIZES = (23, 7, 41, 12, 30)
"""Clients of unequal size: with batches of 8 they take 3, 1, 6, 2 and 4 steps an epoch."""

BY_STEPS = [2, 4, 0, 3, 1]
"""These clients, longest first."""

CLASSES = 3
FEATURES = 4


@dataclass(frozen=True, eq=False)
class Clusters:
    """Labelled samples and who holds which: the raw arrays, and the federation over them."""

    inputs: NDArray[np.float64]
    labels: Ints
    parts: list[Ints]
    federation: InMemoryFederation


def clusters(
    sizes: Sequence[int] = SIZES,
    classes: int = CLASSES,
    shape: tuple[int, ...] = (FEATURES,),
    seed: int = 0,
) -> Clusters:
    """Gaussian clusters, one a class, with a long tail and a class mixture of each client's own.

    Row 0 belongs to nobody: padding reads it, and must not be felt.
    """
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    tail = 0.4 ** np.arange(classes)
    labels = np.concatenate([rng.choice(classes, n, p=rng.dirichlet(4 * tail)) for n in sizes])
    centres = rng.normal(size=(classes, *shape))
    inputs = centres[labels] + rng.normal(size=(total, *shape))
    shuffled = rng.permutation(total)
    owner = np.repeat(np.arange(len(sizes)), sizes)[shuffled]
    return divided(
        np.concatenate([np.zeros((1, *shape)), inputs[shuffled]]),
        np.concatenate([[0], labels[shuffled]]),
        [np.flatnonzero(owner == client) + 1 for client in range(len(sizes))],
        classes,
    )


def divided(inputs: NDArray[np.float64], labels: Ints, parts: list[Ints], classes: int = CLASSES) -> Clusters:
    """These samples, divided among clients by row."""
    return Clusters(inputs, labels, parts, InMemoryFederation(torch.from_numpy(inputs), labels, parts, classes))


def seeded(build: Any, seed: int = 0) -> nn.Module:
    """A module in float64 whose initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: nn.Module = build()
    return module.double()


def linear() -> nn.Module:
    """Softmax regression."""
    return seeded(lambda: nn.Linear(FEATURES, CLASSES))


def mlp(dropout: float | None = None) -> nn.Module:
    """One hidden layer, with dropout if asked for."""
    noise = [] if dropout is None else [nn.Dropout(dropout)]
    return seeded(lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), *noise, nn.Linear(6, CLASSES)))


IMAGE = (1, 4, 4)


def conv_batchnorm() -> nn.Module:
    """A convolution with BatchNorm on images of shape `IMAGE`."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES)
        )
    )


def headless() -> nn.Module:
    """A convolution averaged over the image: no linear layer at all."""
    return seeded(lambda: nn.Sequential(nn.Conv2d(1, CLASSES, 3), nn.AvgPool2d(2), nn.Flatten()))


def population(
    federation: InMemoryFederation,
    epochs: int | None = 2,
    batch_size: int = 8,
    rounds: int = 10,
    steps: int | None = None,
) -> Population:
    totals = federation.counts.sum(axis=0)
    return Population(
        clients=len(federation.samples),
        classes=len(totals),
        mean_samples=float(federation.samples.mean()),
        prior=totals / totals.sum(),
        rounds=rounds,
        epochs=epochs,
        batch_size=batch_size,
        steps=steps,
    )


def make_trainer(
    method: Method,
    federation: InMemoryFederation,
    module: nn.Module,
    *,
    stacked: bool = False,
    loss: Loss | None = None,
    augmentation: Augmentation | None = None,
    epochs: int | None = 2,
    steps: int | None = None,
    batch_size: int = 8,
    seed: int = 5,
    target: Sequence[float] | None = None,
    **optimizer: Any,
) -> ClientTrainer:
    """Training of clients, one by one or stacked, by plain SGD or an optimizer with these options."""
    network, chosen = Network(module), OptimizerOptions(**optimizer)
    return ClientTrainer(
        method=method,
        loss=loss or CrossEntropy(),
        sampler=Uniform(),
        augmentation=augmentation,
        forward=stacked_forward(network) if stacked else SequentialForward(network),
        population=replace(
            population(federation, epochs, batch_size, steps=steps),
            momentum=chosen.momentum,
            nesterov=chosen.nesterov,
            target=None if target is None else np.asarray(target),
            deviation=float(local_deviations(federation.counts, target).mean()),
        ),
        optimizer=chosen,
        seed=seed,
    )


class Bench:
    """Clients that train from the initial model of a module, in one block if stacked, else each in its own."""

    def __init__(
        self,
        method: Method,
        data: Clusters,
        module: nn.Module,
        *,
        lr: float = 0.2,
        round_: int = 2,
        **options: Any,
    ) -> None:
        self.trainer = make_trainer(method, data.federation, module, **options)
        self._federation = data.federation
        self._stacked = not isinstance(self.trainer.forward, SequentialForward)
        x, buffers = self.trainer.forward.network.initial()
        known = self.trainer.population
        state = method.init(x, known)
        message = {} if isinstance(method, TwoPhase) else method.broadcast(state)
        self.sent = Broadcast(round_, x, buffers, message, lr)

    def train(self, ids: Sequence[int] = BY_STEPS, message: State | None = None) -> ClientUpdates:
        """What these clients send back and keep, one row each."""
        return self.run("train", ids, message)

    def run(self, task: Task, ids: Sequence[int] = BY_STEPS, message: State | None = None) -> ClientUpdates:
        blocks = [list(ids)] if self._stacked else [[client] for client in ids]
        return joined([self._run_block(task, np.array(block), message or {}) for block in blocks])

    def _run_block(self, task: Task, ids: Ints, message: State) -> ClientUpdates:
        shards = [self._federation.shard(int(client)) for client in ids]
        state = self.trainer.initial_state(self.trainer.clients(ids, shards), self.sent.x, self.sent.buffers)
        sent = replace(self.sent, message={**self.sent.message, **message})
        return self.trainer.run(task, ids, shards, state, sent)


def joined(results: Sequence[ClientUpdates]) -> ClientUpdates:
    """The results of several blocks as if they were of one."""
    columns: dict[str, Any] = {}
    for one in fields(ClientUpdates):
        first, *_ = values = [getattr(result, one.name) for result in results]
        if isinstance(first, dict):
            columns[one.name] = {key: _stack([value[key] for value in values]) for key in first}
        else:
            columns[one.name] = _stack(values)
    return ClientUpdates(**columns)


def _stack(rows: Sequence[Any]) -> Any:
    return torch.cat(list(rows)) if isinstance(rows[0], Tensor) else np.concatenate(rows)


def make_rounds(
    training: ClientTrainer,
    federation: InMemoryFederation,
    *,
    participation: Any = None,
    block: int = 1,
    workers: int = 1,
    lr: float = 0.1,
    lr_decay: float = 1.0,
    learning_rate: LearningRate | None = None,
    aggregation: Aggregation | None = None,
) -> Rounds:
    """An engine over this federation; everybody takes part unless a participation is given.

    A server that trains on samples of its own has those of all clients.
    """
    first = training.clients(np.array([0]), [federation.shard(0)])
    template = training.initial_state(first, *training.forward.network.initial())
    store = ClientStore(training.population.clients, template)
    inner = InProcess(training, federation, store, block)
    backend: Backend = Processes(inner, workers) if workers > 1 else inner
    everybody = participation or ParticipationOptions(fraction=1.0)
    whole = federation.shard(0).store
    own = ServerSamples(training.forward.network, whole.inputs, whole.labels)
    return Rounds(
        training,
        federation,
        everybody,
        backend,
        store,
        learning_rate or LearningRate(lr=lr, schedule="exponential", lr_decay=lr_decay),
        aggregation=aggregation or Aggregation(),
        own_data=own if isinstance(training.method, ServerTraining) else None,
    )


@dataclass(frozen=True)
class Engine:
    """A way to run the clients of a round."""

    block: int = 1
    workers: int = 1
    stacked: bool = False


ENGINES = {
    "sequential": Engine(),
    "vectorized": Engine(block=64, stacked=True),
    "parallel": Engine(workers=2),
}


def run_rounds(simulated: Rounds, rounds: int) -> list[tuple[ServerState, RoundMeasures]]:
    """The states and records of so many rounds from the initial model; ends the backend's processes."""
    played: list[tuple[ServerState, RoundMeasures]] = []
    try:
        state = simulated.start(*simulated.trainer.forward.network.initial())
        for _ in range(rounds):
            state, record = simulated.step(state)
            played.append((state, record))
    finally:
        simulated.backend.close()
    return played


@dataclass(frozen=True)
class Scripted:
    """Participation by script: who answers in each round; everybody else was asked in vain."""

    cohorts: Sequence[Sequence[int]]

    def sample(self, clients: int, seed: int, round_: int, counts: object = None) -> Ints:
        return np.arange(clients)

    def cohort_size(self, clients: int) -> int:
        return clients

    def answering(self, sampled: Ints, seed: int, round_: int) -> Ints:
        return np.array(self.cohorts[round_], dtype=np.int64)


def watch_updates(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Cohort, RoundResult]]:
    """The cohort and the outcome of every server update, while simulations run_rounds."""
    seen: list[tuple[Cohort, RoundResult]] = []

    def watching(*arguments: Any) -> RoundResult:
        outcome = update(*arguments)
        *_, cohort, _ = arguments
        seen.append((cohort, outcome))
        return outcome

    monkeypatch.setattr("fedwcm.engine.rounds.update", watching)
    return seen
