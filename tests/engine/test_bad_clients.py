"""Faulty clients: updates that are not finite, far too long, or far from all others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.core.method import Method
from fedwcm.core.types import Cohort, Context, Floats, Report, State, Uploads, Vec
from fedwcm.engine.options import Aggregation
from fedwcm.engine.rounds import DivergedError, Rounds, ServerState
from fedwcm.engine.server import RoundMeasures
from fedwcm.engine.uploads import BoundedUploads, CenteredUploads, RobustUploads, UploadRows, receive
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.scaffold import SCAFFOLD

from ..factories import ENGINES, Scripted, clusters, make_rounds, make_trainer, mlp, run_rounds

DATA = clusters()
COHORTS = [[0, 1, 2], [1, 2, 3, 4], [0, 1, 4]]
BAD = 1


@dataclass(frozen=True, kw_only=True)
class Faulty:
    """One client adds a number to all of its update, from its own second participation on."""

    value: float = float("nan")
    rounds: tuple[int, ...] = (1, 2)

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)  # type: ignore[misc]
        if ctx.round in self.rounds:
            bad = torch.from_numpy(ctx.clients.ids == BAD)[:, None]
            upload = {key: torch.where(bad, value + self.value, value) for key, value in upload.items()}
            c = {key: torch.where(bad, value + self.value, value) for key, value in c.items()}
        return upload, report, c


@dataclass(frozen=True, kw_only=True)
class FaultyFedAvg(Faulty, FedAvg):
    """FedAvg with a faulty client."""


@dataclass(frozen=True, kw_only=True)
class FaultySCAFFOLD(Faulty, SCAFFOLD):
    """SCAFFOLD with a faulty client."""


def engine(method: Method, cohorts: list[list[int]], way: str = "sequential", **options: Any) -> Rounds:
    chosen = ENGINES[way]
    trainer = make_trainer(method, DATA.federation, mlp(), stacked=chosen.stacked)
    return make_rounds(
        trainer,
        DATA.federation,
        participation=Scripted(cohorts),
        block=chosen.block,
        workers=chosen.workers,
        **options,
    )


def final(method: Method, cohorts: list[list[int]], way: str = "sequential") -> tuple[ServerState, RoundMeasures]:
    return run_rounds(engine(method, cohorts, way), len(cohorts))[-1]


@pytest.mark.parametrize(
    ("way", "value"), [*((way, "nan") for way in ENGINES), ("vectorized", "inf"), ("vectorized", "-inf")]
)
@pytest.mark.parametrize(("faulty", "sound"), [(FaultyFedAvg, FedAvg), (FaultySCAFFOLD, SCAFFOLD)])
def test_a_client_that_is_not_finite_is_left_out_as_if_it_had_not_answered(
    faulty: Any, sound: Any, value: str, way: str
) -> None:
    state, record = final(faulty(value=float(value)), COHORTS, way)
    without = [COHORTS[0], *[[k for k in cohort if k != BAD] for cohort in COHORTS[1:]]]
    expected, _ = final(sound(), without, way)
    assert torch.equal(state.x, expected.x)
    assert record.left_out == {str(BAD): "its update has a NaN or an infinity"}
    assert record.participants == 2


def test_the_state_of_a_client_that_is_left_out_stays_as_it_was() -> None:
    rounds = engine(FaultySCAFFOLD(rounds=(1,)), COHORTS)
    state = rounds.start(*rounds.trainer.forward.network.initial())
    state, _ = rounds.step(state)
    before = rounds.store.read(np.array([BAD]), torch.device("cpu"))["control"]
    rounds.step(state)
    assert torch.equal(rounds.store.read(np.array([BAD]), torch.device("cpu"))["control"], before)


@pytest.mark.parametrize(("cohort", "message"), [([1], "1 of 1"), ([1, 2], "1 of 2")])
def test_a_round_in_which_half_of_the_updates_are_not_finite_ends_the_run(cohort: list[int], message: str) -> None:
    with pytest.raises(DivergedError, match=f"{message} updates have a NaN or an infinity in round 2"):
        final(FaultyFedAvg(), [[0, 1], cohort])


def test_rejection_can_be_switched_off() -> None:
    rounds = engine(FaultyFedAvg(), COHORTS)
    rounds.backend.reject_nonfinite = False  # type: ignore[attr-defined]
    with pytest.raises(DivergedError, match="the model has a NaN"):
        run_rounds(rounds, 3)


@dataclass(frozen=True, kw_only=True)
class Overflowing(FedAvg):
    """FedAvg that keeps something which overflows, while the model stays finite."""

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x, s = super().update(x, s, uploads, cohort)
        return x, {**s, "momentum": torch.full_like(x, float("inf"))}


def test_state_of_the_server_that_is_not_finite_is_not_kept() -> None:
    with pytest.raises(DivergedError, match="the momentum has a NaN or an infinity after round 1"):
        run_rounds(engine(Overflowing(), COHORTS), 1)


# --- norms and robust sums ---------------------------------------------------------------------------

ROWS = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 5)))


def test_the_median_and_the_trimmed_mean_are_numpys() -> None:
    weights = np.full(7, 1 / 7)
    np.testing.assert_allclose(
        RobustUploads(UploadRows({"delta": ROWS}), 0.5).sum("delta", weights), np.median(ROWS, axis=0)
    )
    even = ROWS[:6]
    np.testing.assert_allclose(
        RobustUploads(UploadRows({"delta": even}), 0.5).sum("delta", np.ones(6)), 6 * np.median(even, axis=0)
    )
    trimmed = np.sort(ROWS.numpy(), axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(RobustUploads(UploadRows({"delta": ROWS}), 0.2).sum("delta", weights), trimmed)
    table = np.stack([weights, -3 * weights])
    two = RobustUploads(UploadRows({"delta": ROWS}), 0.2).sum("delta", table)
    np.testing.assert_allclose(two, np.stack([trimmed, -3 * trimmed]))


@pytest.mark.parametrize("trim", [0.2, 0.5])
def test_a_robust_momentum_is_that_of_increments_per_step(trim: float) -> None:
    """Clients that follow the same direction for 1, 18 and 18 steps: the momentum is that direction."""
    direction, path = ROWS[0], np.array([1.0, 18.0, 18.0])
    uploads = UploadRows({"delta": -torch.from_numpy(path)[:, None] * direction})
    p = np.full(3, 1 / 3)
    _, momentum = RobustUploads(uploads, trim).sum("delta", np.stack([p, -p / path]))
    torch.testing.assert_close(momentum, direction)


def test_a_share_to_trim_is_no_client_short_by_rounding() -> None:
    rows = torch.arange(100.0)[:, None] ** 2
    kept = RobustUploads(UploadRows({"delta": rows}), 0.29).sum("delta", np.full(100, 0.01))
    torch.testing.assert_close(kept, rows[29:71].mean(dim=0))


@pytest.mark.parametrize("clients", range(3, 10))
def test_a_trimmed_mean_drops_one_client_at_least(clients: int) -> None:
    rows = torch.ones(clients, 2)
    rows[1] = 1e6
    kept = RobustUploads(UploadRows({"delta": rows}), Aggregation().trim).sum(
        "delta", np.full(clients, 1 / clients)
    )
    torch.testing.assert_close(kept, rows[0])


def test_a_robust_sum_of_equal_uploads_is_the_plain_one() -> None:
    rows, weights = ROWS[:1].repeat(4, 1), np.array([0.1, 0.2, 0.3, 0.4])
    for trim in (0.1, 0.3, 0.5):
        plain = UploadRows({"delta": rows}).sum("delta", weights)
        for kind in (RobustUploads, CenteredUploads):
            torch.testing.assert_close(kind(UploadRows({"delta": rows}), trim).sum("delta", weights), plain)


def test_increments_beyond_the_bound_are_scaled_down_to_it_and_counted() -> None:
    bound = float(ROWS.norm(dim=1).median())
    received = receive(Aggregation(max_norm=bound), UploadRows({"delta": ROWS, "buffers": ROWS}), ROWS[0])
    uploads = received.uploads
    assert isinstance(uploads, BoundedUploads)
    np.testing.assert_allclose(uploads.norms("delta"), uploads.rows("delta").norm(dim=1))
    weights = np.arange(7.0)
    scaled = torch.from_numpy(weights) @ uploads.rows("delta")
    torch.testing.assert_close(uploads.sum("delta", weights), scaled)
    assert torch.equal(uploads.sum("buffers", weights), UploadRows({"": ROWS}).sum("", weights))
    assert (received.clipped, received.bound) == (3, bound)
    norms = uploads.rows("delta").norm(dim=1)
    assert norms.max() <= bound * (1 + 1e-12)
    short = ROWS.norm(dim=1) <= bound
    assert torch.equal(uploads.rows("delta")[short], ROWS[short])
    torch.testing.assert_close(
        torch.cosine_similarity(uploads.rows("delta"), ROWS), torch.ones(7, dtype=torch.float64)
    )


@pytest.mark.parametrize("trim", [0.1, 0.3, 0.5])
def test_a_client_of_weight_two_counts_as_two_clients(trim: float) -> None:
    weights = np.array([2, 1, 1, 2, 1, 1, 1]) / 9
    repeated = torch.cat([ROWS, ROWS[[0, 3]]])
    nearly_equal = np.full(9, 1 / 9) + np.linspace(-1e-7, 1e-7, 9)  # so that both are computed in the same way
    twice = RobustUploads(UploadRows({"delta": repeated}), max(trim, 2 / 9)).sum("delta", nearly_equal)
    once = RobustUploads(UploadRows({"delta": ROWS}), trim).sum("delta", weights)
    torch.testing.assert_close(once, twice, rtol=0, atol=1e-4)


def test_centred_clipping_goes_no_farther_towards_one_client_than_to_the_others() -> None:
    weights = np.array([2, 1, 1, 2, 1, 1, 1]) / 9
    honest = CenteredUploads(UploadRows({"delta": ROWS}), 0.5).sum("delta", weights)
    wild = ROWS.clone()
    wild[1] = 1e9
    moved = CenteredUploads(UploadRows({"delta": wild}), 0.5).sum("delta", weights)
    assert float((moved - honest).norm()) < 2 * float(ROWS.norm(dim=1).max())


def test_the_bound_is_a_multiple_of_the_median_norm_whatever_one_client_sends() -> None:
    wild = ROWS.clone()
    wild[0] *= 1e9
    received = receive(Aggregation(norm_ratio=2.0, max_norm=1e3), UploadRows({"delta": wild}), torch.zeros(0))
    norms = np.sort(wild.norm(dim=1).numpy())
    assert received.bound == pytest.approx(2 * norms[3])
    assert isinstance(received.uploads, BoundedUploads)
    assert received.uploads.norms("delta").max() <= received.bound * (1 + 1e-9)


def test_changes_of_buffers_and_other_uploads_are_bounded_as_increments_are() -> None:
    sent = torch.ones(ROWS.shape[1], dtype=ROWS.dtype)
    wild = ROWS.clone()
    wild[0] *= 1e9
    table = UploadRows({"delta": ROWS, "buffers": sent + wild, "square": wild})
    uploads = receive(Aggregation(norm_ratio=2.0), table, sent).uploads
    bound = 2.0 * float(wild.norm(dim=1).sort().values[3])
    weights = np.arange(1.0, 8.0) / 28
    for key, origin in (("buffers", sent), ("square", torch.zeros_like(sent))):
        rows = uploads.rows(key)
        assert float((rows - origin).norm(dim=1).max()) == pytest.approx(bound, rel=1e-6)
        torch.testing.assert_close(uploads.sum(key, weights), torch.from_numpy(weights) @ rows)
    honest = receive(Aggregation(norm_ratio=1e3), table, sent).uploads.sum("buffers", weights[::-1].copy())
    assert honest.norm() < 1e6


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "median"},
        {"rule": "trimmed", "trim": 0.3},
        {"rule": "centered"},
        {"max_norm": 3.0},
        {"norm_ratio": 2},
    ],
)
def test_one_client_with_a_huge_update_does_not_ruin_the_model(options: Any) -> None:
    everybody = [[0, 1, 2, 3, 4]] * 3
    wild = FaultyFedAvg(value=1e30)
    ends = []
    for aggregation in (Aggregation(), Aggregation(**options)):
        rounds = engine(wild, everybody, aggregation=aggregation)
        ends.append(run_rounds(rounds, 3)[-1][0].x.abs().max())
    assert ends[0] > 1e20
    assert ends[1] < 100


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("scaffold", {"aggregation.rule": "median"}, "aggregation.rule = 'median'.*scaffold.*clients keep state"),
        ("feddyn", {"aggregation.max_norm": 1.0}, "aggregation.max_norm.*feddyn.*clients keep state"),
        ("mime", {"aggregation.rule": "trimmed"}, "trimmed.*mime.*first phase"),
        ("scaffold", {"aggregation.norm_ratio": 2.0}, "norm_ratio = 2.*scaffold.*clients keep state"),
    ],
)
def test_methods_whose_sums_do_not_permit_it_are_refused_by_name(method: str, settings: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fedwcm.run(method, dataset="digits", clients=5, rounds=1, settings=settings)


def test_options_out_of_range_are_refused_by_name() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"trim": 0.5}, "trim"),
        ({"max_norm": 0.0}, "max_norm"),
        ({"rule": "krum"}, "rule"),
        ({"max_norm": 1.0, "quantile": 1.0}, "quantile"),
        ({"max_norm": 1.0, "norm_lr": 0.0}, "norm_lr"),
        ({"quantile": 0.5}, "set max_norm"),
        ({"max_share": 0.0}, "max_share"),
        ({"norm_ratio": 0.0}, "norm_ratio"),
    ]
    for options, name in wrong:
        with pytest.raises(ValueError, match=name):
            Aggregation(**options)


@pytest.mark.parametrize("settings", [{"aggregation.rule": "median"}, {"aggregation.max_norm": 0.5}])
def test_a_run_with_robust_sums_learns_and_says_how_many_were_clipped(settings: Any) -> None:
    result = fedwcm.run("fedavg", dataset="digits", clients=10, participation=0.5, rounds=8, settings=settings)
    records: list[Any] = list(result.history)
    assert records[-1].test_accuracy > 0.4
    if "aggregation.max_norm" in settings:
        assert all(0 <= record.extra["clipped_clients"] <= 5 for record in records)


@pytest.mark.parametrize("method", ["fedavg", "fedwcm[temperature_scale=0.01]", "fedwcm-x", "mime"])
def test_no_client_has_more_than_the_largest_share_of_a_round(method: str) -> None:
    options: dict[str, Any] = {
        "dataset": "digits",
        "clients": 20,
        "partition": "fedgrab[beta=0.05]",
        "participation": 1.0,
        "rounds": 1,
    }
    free = fedwcm.run(method, **options)
    bounded = fedwcm.run(method, **options, settings={"aggregation.max_share": 0.2})
    assert all(max(record.weights or ()) > 0.2 for record in free.history)
    assert all(max(record.weights or ()) <= 0.2 + 1e-6 for record in bounded.history)


@dataclass(frozen=True, kw_only=True)
class Favouring(FedAvg):
    """FedAvg with weights of its own, which know no largest share."""

    def weights(self, s: State, cohort: Cohort) -> Floats:
        return np.eye(len(cohort))[0]


def test_weights_of_a_method_beyond_the_largest_share_are_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"Favouring.weights gives .* 1.00 of .* return cohort.limit_shares\(weights\)"
    ):
        run_rounds(engine(Favouring(), COHORTS, aggregation=Aggregation(max_share=0.2)), 1)


@pytest.mark.parametrize("quantile", [0.2, 0.8])
def test_a_bound_that_adapts_leaves_the_wished_share_as_it_is(quantile: float) -> None:
    """Also from a start that is far off, for lengths that do not change."""
    lengths = np.random.default_rng(0).lognormal(size=1000)
    aggregation, bound = Aggregation(max_norm=100.0, quantile=quantile), 100.0
    for _ in range(200):
        bound = aggregation.next_bound(bound, float((lengths > bound).mean())) or 0.0
    assert (lengths <= bound).mean() == pytest.approx(quantile, abs=0.02)


def test_a_run_that_was_stopped_goes_on_with_the_bound_that_it_had(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "dataset": "digits",
        "clients": 5,
        "participation": 1.0,
        "settings": {"aggregation.max_norm": 0.01, "aggregation.quantile": 0.5, "run.checkpoint_every": 1},
    }
    whole = fedwcm.run("fedavg", rounds=4, **options)
    fedwcm.run("fedavg", rounds=2, out=tmp_path / "run", **options)
    rest = fedwcm.run("fedavg", rounds=4, out=tmp_path / "run", resume=True, **options)
    bounds = [record.number("max_norm") for record in whole.history]
    assert len(set(bounds)) == 4
    assert [record.extra["max_norm"] for record in rest.history] == bounds
    rule, clipped = Aggregation(max_norm=0.01, quantile=0.5), [r.extra["clipped_clients"] for r in whole.history]
    assert bounds[1:] == [rule.next_bound(bound, n / 5) for bound, n in zip(bounds, clipped, strict=True)][:3]
