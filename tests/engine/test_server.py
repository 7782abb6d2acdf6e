"""The server's side: sums, who takes part, who answers, and randomness by address."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Cohort
from fedwcm.engine.options import ParticipationOptions
from fedwcm.engine.rounds import ServerState
from fedwcm.engine.server import RoundResult, _entropy
from fedwcm.engine.uploads import UploadRows
from fedwcm.methods import METHODS

from ..factories import SIZES, Scripted, clusters, linear, make_rounds, make_trainer, run_rounds, watch_updates

DATA = clusters()
FOUR = ("fedavg", "fedcm", "fedwcm", "fedwcm-x")


# --- sums --------------------------------------------------------------------------------------------


def test_sums_of_one_upload_in_one_pass_equal_separate_ones_and_those_by_hand() -> None:
    rng = np.random.default_rng(0)
    rows = {
        "a": torch.from_numpy(rng.normal(size=(3, 5))),
        "b": torch.from_numpy(rng.normal(size=(3, 2, 4))),
        "c": torch.from_numpy(rng.normal(size=3)),
    }
    uploads = UploadRows(rows)
    for key, values in rows.items():
        weights = rng.normal(size=(4, 3))
        together = uploads.sum(key, weights)
        assert together.shape == (4, *values.shape[1:])
        for row, one in zip(weights, together, strict=True):
            by_hand = sum(w * value for w, value in zip(row, values.numpy(), strict=True))
            np.testing.assert_allclose(one.numpy(), by_hand, rtol=1e-13, atol=1e-15)
            np.testing.assert_allclose(uploads.sum(key, row).numpy(), by_hand, rtol=1e-13, atol=1e-15)


# --- who takes part ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "clients", "size"), [(0.1, 100, 10), (1.0, 7, 7), (0.25, 10, 2), (0.001, 50, 1)]
)
def test_a_fixed_cohort_has_its_exact_size_and_ascending_distinct_ids(
    share: float, clients: int, size: int
) -> None:
    for round_ in range(20):
        ids = ParticipationOptions(fraction=share).sample(clients, 3, round_)
        assert len(ids) == size
        assert (np.diff(ids) > 0).all()
        assert ids[0] >= 0
        assert ids[-1] < clients


def test_every_client_is_drawn_equally_often() -> None:
    drawn = np.concatenate([ParticipationOptions(fraction=0.2).sample(20, 1, r) for r in range(2000)])
    share = np.bincount(drawn, minlength=20) / 2000
    assert np.abs(share - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 2000)


def test_bernoulli_cohorts_vary_around_their_share_and_are_never_empty() -> None:
    sizes = [len(ParticipationOptions(fraction=0.2, sampling="bernoulli").sample(50, 1, r)) for r in range(1000)]
    assert abs(np.mean(sizes) - 10) < 5 * np.sqrt(50 * 0.2 * 0.8 / 1000)
    assert np.var(sizes) == pytest.approx(50 * 0.2 * 0.8, rel=0.25)
    rare = [ParticipationOptions(fraction=0.05, sampling="bernoulli").sample(4, 1, r) for r in range(300)]
    assert min(map(len, rare)) == 1
    assert all((np.diff(ids) > 0).all() for ids in rare)


def test_balanced_cohorts_even_out_their_classes_and_leave_nobody_out() -> None:
    rng = np.random.default_rng(0)
    counts = np.stack([rng.multinomial(50, rng.dirichlet(0.1 * 0.6 ** np.arange(8))) for _ in range(60)])

    def unevenness(ids: Any) -> float:
        shares = counts[ids].sum(axis=0) / counts[ids].sum()
        return float(((shares - 1 / 8) ** 2).sum())

    even, plain = ParticipationOptions(fraction=0.2, sampling="balanced"), ParticipationOptions(fraction=0.2)
    cohorts = [even.sample(60, 1, r, lambda: counts) for r in range(600)]
    assert all(len(ids) == 12 and (np.diff(ids) > 0).all() for ids in cohorts)
    drawn = [unevenness(plain.sample(60, 1, r)) for r in range(200)]
    assert np.mean([unevenness(ids) for ids in cohorts]) < 0.5 * np.mean(drawn)
    assert len(np.unique(np.concatenate(cohorts))) == 60
    everybody = replace(even, fraction=1.0).sample(60, 1, 0, lambda: counts)
    assert (everybody == np.arange(60)).all()


def test_balanced_cohorts_need_counts_that_the_server_sees() -> None:
    with pytest.raises(ValueError, match="'balanced' needs the class counts of every client"):
        ParticipationOptions(sampling="balanced").sample(10, 1, 0)
    settings = {"participation.sampling": "balanced", "privacy.mode": "he"}
    with pytest.raises(ValueError, match=r"participation.sampling = 'balanced' .* shows the server no client's"):
        fedwcm.run("fedavg", dataset="digits", clients=5, rounds=1, settings=settings)


def test_sampled_clients_drop_out_at_the_given_rate_and_only_they_do() -> None:
    dropping = ParticipationOptions(fraction=0.5, dropout=0.3)
    answered, asked = 0, 0
    for r in range(400):
        sampled = dropping.sample(40, 1, r)
        ids = dropping.answering(sampled, 1, r)
        assert np.isin(ids, sampled).all()
        assert (np.diff(ids) > 0).all()
        answered, asked = answered + len(ids), asked + len(sampled)
    assert abs(answered / asked - 0.7) < 5 * np.sqrt(0.3 * 0.7 / asked)
    assert len(ParticipationOptions(dropout=0.99).answering(np.arange(3), 1, 0)) == 0


def test_dropout_leaves_the_draw_of_the_cohort_alone_and_differs_by_round() -> None:
    plain, dropping = ParticipationOptions(fraction=0.5), ParticipationOptions(fraction=0.5, dropout=0.5)
    assert all((plain.sample(30, 1, r) == dropping.sample(30, 1, r)).all() for r in range(10))
    everybody = np.arange(30)
    masks = {tuple(dropping.answering(everybody, 1, r)) for r in range(10)}
    assert len(masks) == 10
    assert all((plain.answering(everybody, 1, r) == everybody).all() for r in range(3))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fraction", 0.0),
        ("fraction", 1.1),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("dropout", float("nan")),
    ],
)
def test_shares_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} = {value}"):
        ParticipationOptions(**{field: value})


# --- rounds ------------------------------------------------------------------------------------------


def watched(
    name: str, participation: Any, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[Cohort, RoundResult]], list[tuple[ServerState, dict[str, Any]]]]:
    """The server's updates, and the rounds played."""
    seen = watch_updates(monkeypatch)
    training = make_trainer(METHODS[name](), DATA.federation, linear())
    return seen, run_rounds(make_rounds(training, DATA.federation, participation=participation), rounds)  # type: ignore[return-value]


def test_every_method_sees_the_same_cohorts(monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts = []
    for name in FOUR:
        with monkeypatch.context() as patch:
            seen, _ = watched(name, ParticipationOptions(fraction=0.6, dropout=0.3), 6, patch)
            cohorts.append([(c.round, c.ids.tolist()) for c, _ in seen])
    assert all(other == cohorts[0] for other in cohorts)
    assert len({str(ids) for _, ids in cohorts[0]}) > 2


@pytest.mark.parametrize("name", FOUR)
def test_weights_of_those_who_answered_sum_to_1(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, _ = watched(name, ParticipationOptions(fraction=1.0, dropout=0.4), 8, monkeypatch)
    assert len({len(cohort) for cohort, _ in seen}) > 1
    for cohort, outcome in seen:
        weights = outcome.weights
        assert len(weights) == len(cohort)
        assert weights.sum() == pytest.approx(1, rel=1e-12)
        assert (weights > 0).all()


def test_the_server_knows_each_answer_s_size_steps_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, _ = watched("fedwcm-x", ParticipationOptions(fraction=0.6), 3, monkeypatch)
    mean_steps = 2 * np.ceil(np.mean(SIZES) / 8)
    for cohort, _ in seen:
        n = np.array(SIZES)[cohort.ids]
        np.testing.assert_array_equal(cohort.samples, n)
        np.testing.assert_array_equal(cohort.steps, 2 * np.ceil(n / 8))
        np.testing.assert_allclose(cohort.learning_rates, 0.1 * mean_steps / cohort.steps, rtol=1e-14)


@pytest.mark.parametrize("name", FOUR)
def test_a_round_without_any_answer_keeps_everything_and_counts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, played = watched(name, Scripted([[0, 2], [], [1, 3]]), 3, monkeypatch)
    (first, _), (empty, record), (last, _) = played
    assert torch.equal(empty.x, first.x)
    assert empty.method.keys() == first.method.keys()
    assert all(torch.equal(empty.method[key], first.method[key]) for key in first.method)
    assert empty.round == 2
    assert record.participants == record.bytes_up == 0  # type: ignore[attr-defined]
    assert [cohort.round for cohort, _ in seen] == [0, 2]
    assert not torch.equal(last.x, empty.x)


def test_a_round_after_an_empty_one_is_the_round_of_its_number() -> None:
    """Its batches and its rate are those of round 2, as if the empty one had been played."""
    training = make_trainer(METHODS["fedavg"](), DATA.federation, linear())
    playing = make_rounds(training, DATA.federation, participation=Scripted([[], [], [1, 3]]), lr_decay=0.5)
    start = playing.start(*training.forward.network.initial())
    skipped = run_rounds(playing, 3)[-1][0]
    direct, _ = playing.step(replace(start, round=2))
    assert torch.equal(skipped.x, direct.x)


def test_bytes_are_counted_down_to_the_cohort_and_up_from_those_who_answered() -> None:
    training = make_trainer(METHODS["fedwcm"](), DATA.federation, linear())
    (_, record), (_, empty) = run_rounds(
        make_rounds(training, DATA.federation, participation=Scripted([[0, 2], []])), 2
    )
    vector = 8 * training.forward.network.size
    assert record.bytes_down == empty.bytes_down == 5 * (vector + vector + 8)  # x, momentum, alpha
    assert record.bytes_up == 2 * (vector + 8)  # delta, score


# --- randomness --------------------------------------------------------------------------------------


def test_the_same_address_gives_the_same_numbers_and_another_one_others() -> None:
    addresses = list(product((0, 1, 2**63 - 1), Purpose, (0, 1, 2), (0, 1, 2)))
    streams = {address: generator(*address).random(4).tobytes() for address in addresses}
    assert len(set(streams.values())) == len(addresses)
    for address in reversed(addresses):
        assert generator(*address).random(4).tobytes() == streams[address]


def test_streams_of_neighbouring_addresses_do_not_overlap() -> None:
    draws = [generator(0, Purpose.BATCHES, 0, client).integers(2**63, size=1000) for client in range(50)]
    assert len(np.unique(np.concatenate(draws))) == 50_000


def test_purposes_are_numbered_once_and_for_all() -> None:
    """Renumbering would change every seeded result ever published."""
    names = "MODEL LONG_TAIL PARTITION VALIDATION COHORT ANSWERS BATCHES AUGMENT LOSS SERVER DROPOUT_LAYERS"
    assert [purpose.name for purpose in sorted(Purpose)][:11] == names.split()
    assert [int(purpose) for purpose in sorted(Purpose)] == list(range(len(Purpose)))


def test_the_entropy_of_even_weights_is_the_logarithm_of_their_number() -> None:
    assert _entropy(np.full(4, 0.25)) == pytest.approx(np.log(4))
    assert _entropy(np.array([0.0, 1.0])) == 0.0
    assert _entropy(np.array([1.0, 3.0])) == pytest.approx(0.75 * np.log(4 / 3) + 0.25 * np.log(4))
