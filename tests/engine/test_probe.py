"""A round with a first phase: Mime, in the engine and as a loop written by hand."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import fedwcm
from fedwcm.core.batch import LocalData
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Context, State, Uploads
from fedwcm.engine.rounds import DivergedError

from ..factories import CLASSES, ENGINES, SIZES, Scripted, clusters, linear, make_rounds, make_trainer, run_rounds
from ..reference.softmax_regression import loss_gradient
from ..specimens import FullGradient, Mime

Vector = NDArray[np.float64]

DATA = clusters()
SEED, EPOCHS, BATCH, LR, DECAY = 5, 2, 8, 0.2, 0.9
COHORTS = [[0, 2, 3], [1, 2, 4], [2], [0, 1, 2, 3, 4]]


def gradient(w: Vector, rows: NDArray[np.int64]) -> Vector:
    return loss_gradient(w, DATA.inputs[rows], DATA.labels[rows], CLASSES)[1]


def mime_client(x: Vector, full: Vector, client: int, round_: int) -> Vector:
    """A client's local model after its epochs of variance-reduced steps."""
    rng, part, w = generator(SEED, Purpose.BATCHES, round_, client), DATA.parts[client], x.copy()
    for _ in range(EPOCHS):
        order = part[rng.permutation(len(part))]
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            w = w - LR * DECAY**round_ * (gradient(w, rows) - gradient(x, rows) + full)
    return w


@cache
def mime_by_hand() -> list[tuple[Vector, Vector]]:
    """The model and the full gradient of each round."""
    x = torch.nn.utils.parameters_to_vector(linear().parameters()).detach().numpy()
    rounds = []
    for round_, cohort in enumerate(COHORTS):
        share = np.array([SIZES[client] for client in cohort]) / sum(SIZES[client] for client in cohort)
        full = share @ np.stack([gradient(x, DATA.parts[client]) for client in cohort])
        x = share @ np.stack([mime_client(x, full, client, round_) for client in cohort])
        rounds.append((x, full))
    return rounds


@pytest.mark.parametrize("engine", ENGINES)
def test_a_method_with_a_first_phase_equals_the_loop_written_by_hand(engine: str) -> None:
    way = ENGINES[engine]
    training = make_trainer(Mime(), DATA.federation, linear(), stacked=way.stacked, epochs=EPOCHS, seed=SEED)
    played = run_rounds(
        make_rounds(
            training,
            DATA.federation,
            participation=Scripted(COHORTS),
            lr=LR,
            lr_decay=DECAY,
            block=way.block,
            workers=way.workers,
        ),
        len(COHORTS),
    )
    for (state, _), (x, full) in zip(played, mime_by_hand(), strict=True):
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(state.method["last"].numpy(), full, rtol=1e-10, atol=1e-13)


def test_probing_counts_bytes_down_to_the_cohort_and_up_from_those_who_answered() -> None:
    training = make_trainer(Mime(), DATA.federation, linear())
    (_, record), *_ = run_rounds(make_rounds(training, DATA.federation, participation=Scripted(COHORTS)), 1)
    vector = 8 * training.forward.network.size
    assert record.bytes_down == 5 * (vector + vector) + 5 * (vector + vector)  # x and a message, twice
    assert record.bytes_up == 3 * vector + 3 * vector


def test_a_round_without_an_answer_keeps_the_state_of_a_probing_method_too() -> None:
    training = make_trainer(Mime(), DATA.federation, linear())
    scripted = Scripted([[0, 2, 3], [], [1]])
    (before, _), (after, record), _ = run_rounds(make_rounds(training, DATA.federation, participation=scripted), 3)
    assert torch.equal(after.x, before.x)
    assert torch.equal(after.method["last"], before.method["last"])
    assert record.participants == 0


@dataclass(frozen=True, kw_only=True)
class Broken(Mime):
    """Mime whose clients upload no numbers in the first phase."""

    def probe(self, local: LocalData, ctx: Context) -> State:
        return {key: value * float("nan") for key, value in super().probe(local, ctx).items()}


def test_a_first_phase_without_a_finite_upload_ends_the_run() -> None:
    training = make_trainer(Broken(), DATA.federation, linear())
    with pytest.raises(DivergedError, match="3 of 3 updates have a NaN or an infinity in round 1"):
        run_rounds(make_rounds(training, DATA.federation, participation=Scripted(COHORTS)), 1)


class Curious(FullGradient):
    """Uploads what the probing client was sent."""

    def init(self, x: torch.Tensor, population: Any) -> State:
        return {"secret": torch.full_like(x, 7.0)}

    def probe_broadcast(self, s: State) -> State:
        return {"secret": s["secret"]}

    def probe(self, local: Any, ctx: Any) -> State:
        return {"echo": ctx.message["secret"].expand(len(ctx.clients), -1) * ctx.clients.ids[0]}

    def after_probe(self, s: State, uploads: Uploads, cohort: Any) -> State:
        return {**s, "echo": uploads.sum("echo", np.eye(len(cohort))[1])}

    def update(self, x: torch.Tensor, s: State, uploads: Uploads, cohort: Any) -> tuple[torch.Tensor, State]:
        return x, s


def test_the_probing_clients_get_their_message_and_are_summed_by_id() -> None:
    training = make_trainer(Curious(), DATA.federation, linear())
    scripted = Scripted([[1, 3, 4]])
    (state, _), *_ = run_rounds(make_rounds(training, DATA.federation, participation=scripted), 1)
    assert state.method["echo"].eq(7.0 * 3).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_full_gradients_are_of_augmented_samples_if_mini_batches_are(engine: str) -> None:
    """With one step from x and no momentum, Mime's direction is the full gradient alone: g(w) − g(x) = 0."""

    def model(**options: Any) -> Tensor:
        small: Any = {"clients": 5, "participation": 1.0, "rounds": 1, "steps": 1, "batch_size": 20, "beta": 1.0}
        ended = fedwcm.run("mime[beta=0.0]", dataset="digits", model="mlp[hidden=[4]]", **small, **options)
        return torch.cat([value.flatten() for value in ended.model.state_dict().values()])

    plain, augmented = (model(augment=augment, backend="sequential") for augment in (False, True))
    assert not torch.equal(plain, augmented)
    torch.testing.assert_close(model(augment=True, backend=engine), augmented, rtol=1e-4, atol=1e-6)


def test_all_gradients_of_a_step_have_the_same_dropout() -> None:
    """So a step of Mime from x without momentum does not depend on its batch: g(w) − g(x) = 0."""

    def model(batch_size: int) -> Tensor:
        def dropping(input_shape: tuple[int, ...], classes: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, classes))

        small: Any = {"clients": 5, "participation": 1.0, "rounds": 1, "steps": 1, "beta": 1.0}
        ended = fedwcm.run("mime[beta=0.0]", dataset="digits", model=dropping, batch_size=batch_size, **small)
        return torch.cat([value.flatten() for value in ended.model.state_dict().values()])

    torch.testing.assert_close(model(5), model(50), rtol=1e-5, atol=1e-7)
