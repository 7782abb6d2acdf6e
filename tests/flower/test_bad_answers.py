"""Answers of careless and of hostile clients: each is refused in words, and the run is that of the others.

One run meets all the bad answers to a round, one after the other; another one all those before the first round.
"""

import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from tools import measure_one_client

from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.run import Run
from fedwcm.flower.app.options import FLOWER_DEFAULTS
from fedwcm.flower.server.answers import check_samples
from fedwcm.flower.untrusted import UnusableError

from .federation import (
    CLIENTS,
    EVERYBODY,
    FULL,
    OTHERS,
    VICTIM,
    assert_same_model,
    counts_of,
    finish,
    grid,
    in_simulator,
    on_flower,
)
from .wire import WireGrid, strike

TRAIN = "train.train"
Harm = Callable[[RecordDict], RecordDict]


@dataclass(frozen=True)
class Bad:
    """What is done to an answer, and what the server says to it."""

    harm: Harm
    message: str


def entry(record: str, key: str, value: Any) -> Harm:
    """The answer with another value, or one computed from the right one."""

    def harm(content: RecordDict) -> RecordDict:
        values = dict(content[record])
        values[key] = value(values[key]) if callable(value) else value
        return RecordDict({**content, record: type(content[record])(values)})  # type: ignore[arg-type]

    return harm


def upload(change: Callable[[Any], Any]) -> Harm:
    return entry("upload", "delta", lambda array: Array(np.asarray(change(array.numpy()))))


def raw(data: Callable[[Array], bytes]) -> Harm:
    """An upload that says the right thing of other bytes."""
    return entry("upload", "delta", lambda array: Array(array.dtype, array.shape, array.stype, data(array)))


def without(record: str) -> Harm:
    return lambda content: RecordDict({name: content[name] for name in content if name != record})


def instead(record: str, value: Any) -> Harm:
    return lambda content: RecordDict({**content, record: value})


def poisoned(values: Any) -> Any:
    return np.where(np.arange(values.size) == 3, np.nan, values).astype(values.dtype)


def poison(request: Message, reply: Message) -> Message:
    return Message(upload(poisoned)(reply.content), reply_to=request)


def saved(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=True)
    return stream.getvalue()


def header_of_a_terabyte(array: Array) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (2**38,)})
    return stream.getvalue() + array.data[128:]


IN_A_ROUND: dict[str, Bad] = {
    "nothing": Bad(lambda _: RecordDict(), "the record 'answers' is missing"),
    "nonsense": Bad(
        instead("answers", ConfigRecord({"round": "x"})), "answers for client None, but was asked for 1"
    ),
    "another round": Bad(entry("answers", "round", 1), "it answers for round 1, but was asked for"),
    "another client": Bad(entry("answers", "client", 2), "it answers for client 2, but was asked for 1"),
    "another run": Bad(entry("answers", "run_id", "old"), "it answers for run_id 'old'"),
    "text as round": Bad(entry("answers", "round", "2"), "it answers for round '2'"),
    "no samples": Bad(entry("answers", "samples", 0), "its 'samples' is 0: it must be a whole number"),
    "too many samples": Bad(entry("answers", "samples", 10**18), "its 'samples' is 1000000000000000000"),
    "half a sample": Bad(entry("answers", "samples", 2.5), "its 'samples' is 2.5"),
    "no upload": Bad(without("upload"), "the record 'upload' is missing"),
    "another upload": Bad(
        lambda c: RecordDict({**c, "upload": ArrayRecord({"weights": c.array_records["upload"]["delta"]})}),
        "its upload has ['weights'], not ['delta']",
    ),
    "nan": Bad(upload(poisoned), "its upload 'delta' has a NaN or an infinity"),
    "another length": Bad(upload(lambda v: v[:-1]), "its upload 'delta' is float32 of shape"),
    "another precision": Bad(upload(np.float64), "its upload 'delta' is float64 of shape"),
    "objects": Bad(
        raw(lambda a: saved(a.numpy().astype(object))),
        "its upload 'delta' does not have the expected type and size",
    ),
    "empty bytes": Bad(raw(lambda _: b""), "its upload 'delta' cannot be read (ValueError)"),
    "an archive": Bad(raw(lambda _: b"PK\x03\x04" + bytes(200)), "its upload 'delta' cannot be read (ValueError)"),
    "a pickle": Bad(raw(lambda _: pickle.dumps([1.0])), "its upload 'delta' cannot be read (ValueError)"),
    "cut short": Bad(raw(lambda a: a.data[:-4]), "its upload 'delta' does not have the expected type and size"),
    "a terabyte": Bad(raw(header_of_a_terabyte), "its upload 'delta' does not have the expected type and size"),
    "3e38": Bad(upload(lambda v: np.full_like(v, 3e38)), "its upload 'delta' has norm"),
    "a million times too long": Bad(upload(lambda v: v * np.float32(1e8)), "that of others is"),
    "no report": Bad(without("numbers"), "the record 'numbers' is missing"),
    "surplus report": Bad(entry("numbers", "report/score", 1.0), "its report has"),
    "a list as loss": Bad(entry("numbers", "loss", [1.0, 2.0]), "its 'loss' is [1.0, 2.0]: it must be a finite"),
    "nan as loss": Bad(entry("numbers", "loss", float("nan")), "its 'loss' is nan"),
    "accuracy of 7": Bad(entry("numbers", "accuracy", 7.0), "its 'accuracy' is 7.0: it must be from 0 to 1"),
    "learning rate of 0": Bad(entry("numbers", "lr", 0.0), "its 'lr' is 0.0: it must be from"),
    "learning rate of 1e9": Bad(entry("numbers", "lr", 1e9), "its 'lr' is 1000000000.0"),
}


def with_bad_answers(method: str, harms: list[Harm], **changes: Any) -> Run:
    """A run in which a client gives one bad answer after the other, from round 2 on, and good ones in the end."""

    def act(request: Message, reply: Message) -> Message:
        return Message(harms[int(request.metadata.group_id) - 2](reply.content), reply_to=request)

    mischief = strike(act, {VICTIM}, rounds=range(2, len(harms) + 2))
    return on_flower(method, mischief, **FULL, **changes, **{"run.rounds": len(harms) + 2})


@pytest.fixture(scope="module")
def in_rounds() -> Run:
    return with_bad_answers("scaffold", [bad.harm for bad in IN_A_ROUND.values()])


@pytest.mark.parametrize("fault", IN_A_ROUND)
def test_a_bad_answer_leaves_its_client_out_of_the_round(fault: str, in_rounds: Run) -> None:
    left_out = in_rounds.history[1 + list(IN_A_ROUND).index(fault)].left_out
    assert left_out is not None
    assert set(left_out) == {str(VICTIM)}
    assert IN_A_ROUND[fault].message in left_out[str(VICTIM)]


def test_bad_answers_change_nothing_for_the_others(in_rounds: Run) -> None:
    """Nor does the client lose anything: its control variate is that of its last good answer."""
    assert_same_model(in_simulator("scaffold", [EVERYBODY, *[OTHERS] * len(IN_A_ROUND), EVERYBODY]), in_rounds)


def test_a_score_that_no_client_can_have_is_not_believed() -> None:
    scores = [1e9, float("nan"), -1.0, 0.2]
    finished = with_bad_answers("fedwcm", [entry("numbers", "report/score", score) for score in scores])
    reasons = [(record.left_out or {}).get(str(VICTIM), "") for record in finished.history]
    assert [("report/score" in reason) for reason in reasons] == [False, True, True, True, True, False]
    assert_same_model(in_simulator("fedwcm", [EVERYBODY, *[OTHERS] * len(scores), EVERYBODY]), finished)


def test_samples_may_be_half_to_twice_of_what_a_client_first_said() -> None:
    assert [check_samples({"samples": samples}, 100) for samples in (50, 200)] == [50, 200]
    for samples in (49, 201):
        with pytest.raises(UnusableError, match="from 50 to 200"):
            check_samples({"samples": samples}, 100)


BEFORE_ROUND_1: dict[str, dict[str, Bad]] = {
    "query.info": {
        "nothing": Bad(lambda _: RecordDict(), "the record 'info' is missing"),
        "text as number": Bad(entry("info", "client", "one"), "its 'client' is 'one'"),
        "a negative number": Bad(entry("info", "client", -1), "its 'client' is -1"),
        "a number too high": Bad(entry("info", "client", 10**6), "it claims to be client 1000000: 0 to"),
        "no samples": Bad(entry("info", "samples", 0), "its 'samples' is 0"),
        "too many samples": Bad(entry("info", "samples", 10**18), "its 'samples' is 1000000000000000000"),
        "nan samples": Bad(entry("info", "samples", float("nan")), "its 'samples' is nan"),
        "text as classes": Bad(entry("info", "classes", "ten"), "its 'classes' is 'ten'"),
        "other classes": Bad(entry("info", "classes", 11), "its model has 11 classes, the server's has 10"),
        "text as shape": Bad(entry("info", "input_shape", "8x8"), "its 'input_shape' is '8x8': it must be a list"),
        "a huge shape": Bad(entry("info", "input_shape", [2**31, 2**31]), "its inputs have shape (2147483648, 2"),
        "another shape": Bad(
            entry("info", "input_shape", [3, 5]),
            "its inputs have shape (3, 5), those of the server's test data (1, 8, 8)",
        ),
        "another dtype": Bad(entry("info", "input_dtype", "complex64"), "its inputs are 'complex64' of shape"),
        "no such precision": Bad(entry("info", "input_dtype", "load"), "its inputs are 'load'"),
        "another version": Bad(entry("info", "version", "0.0.1"), "it has fedwcm '0.0.1', the server has"),
        "another model": Bad(
            entry("info", "model", lambda m: m[:-1]), "its model differs from the server's: None"
        ),
        "a field too many": Bad(entry("info", "more", 1), "its info has"),
    },
    "query.counts": {
        "nothing": Bad(lambda _: RecordDict(), "the record 'counts' is missing"),
        "too few": Bad(entry("counts", "counts", lambda c: c[:-1]), "it counts 9 classes, the model has 10"),
        "negative": Bad(entry("counts", "counts", lambda c: [-1, *c[1:]]), "its 'counts' is -1"),
        "nan": Bad(entry("counts", "counts", lambda c: [float("nan")] * 10), "its 'counts' is nan"),
        "a number": Bad(entry("counts", "counts", 7), "its 'counts' is 7: it must be a list"),
        "another sum": Bad(entry("counts", "counts", lambda c: [*c[1:], 0]), "it has"),
    },
    "query.statistics": {
        "nothing": Bad(lambda _: RecordDict(), "the record 'statistics' is missing"),
        "nan": Bad(entry("statistics", "score", float("nan")), "its 'score' is nan"),
        "a list": Bad(entry("statistics", "score", [0.1]), "its 'score' is [0.1]"),
        "another name": Bad(instead("statistics", MetricRecord({"rank": 1})), "its statistics has ['rank']"),
        "too high": Bad(entry("statistics", "score", 1e9), "its 'score' is 1000000000.0: it must be from"),
    },
}

ALL_BEFORE = [(kind, fault) for kind, faults in BEFORE_ROUND_1.items() for fault in faults]


@pytest.fixture(scope="module")
def before_rounds() -> tuple[Run, list[str], WireGrid]:
    """A run with a node for every bad answer besides the honest ones; what was logged about each."""
    everybody = CLIENTS + len(ALL_BEFORE)

    def mischief(client: int, request: Message, reply: Message) -> Message:
        kind, fault = ALL_BEFORE[client - CLIENTS]
        if client < CLIENTS or request.metadata.message_type != kind:
            return reply
        return Message(BEFORE_ROUND_1[kind][fault].harm(reply.content), reply_to=request)

    changes = {"run.rounds": 1, "flower.clients": everybody}
    nodes = grid("fedwcm", mischief, clients=everybody, **FULL, **changes)
    message: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fedwcm.flower.server.directory.LOG.warning", lambda text, *values: message.append(text % values)
        )
        finished = finish(nodes)
    return finished, message, nodes


@pytest.mark.parametrize(("kind", "fault"), ALL_BEFORE)
def test_a_bad_answer_before_round_1_leaves_its_client_out(
    kind: str, fault: str, before_rounds: tuple[Run, list[str], WireGrid]
) -> None:
    _, message, nodes = before_rounds
    client = CLIENTS + ALL_BEFORE.index((kind, fault))
    node = next(name for name, one in nodes.nodes.items() if one.client == client)
    start = f"node {node} is not used" if kind == "query.info" else f"{kind}: client {client} is left out"
    (line,) = [line for line in message if line.startswith(start)]
    assert BEFORE_ROUND_1[kind][fault].message in line


def test_the_class_distribution_is_that_of_the_clients_with_good_counts(
    before_rounds: tuple[Run, list[str], WireGrid],
) -> None:
    finished, *_ = before_rounds
    counted = EVERYBODY + [CLIENTS + i for i, (kind, _) in enumerate(ALL_BEFORE) if kind == "query.statistics"]
    assert list(finished.summary.train_counts) == sum(map(counts_of, counted)).tolist()


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_robust_aggregation_is_the_simulator_s(rule: str) -> None:
    """And a plausible lie, an upload ten times too long and the wrong way, moves a median little."""
    changes = {"aggregation.rule": rule, **({"aggregation.trim": 0.2} if rule == "trimmed" else {})}
    finished = with_bad_answers("fedavg", [], **changes)
    assert_same_model(in_simulator("fedavg", [EVERYBODY] * 2, **changes), finished)


def test_a_bound_on_the_norm_and_a_median_limit_a_liar() -> None:
    def away(**changes: Any) -> float:
        lie = upload(lambda v: -100 * v)
        honest, fooled = with_bad_answers("fedavg", [], **changes), with_bad_answers("fedavg", [lie], **changes)
        return max(float((fooled.model[n] - tensor).norm()) for n, tensor in honest.model.items())

    free = away(**{"aggregation.norm_ratio": "none"})
    for bound in ({"aggregation.max_norm": 1.0, "aggregation.norm_ratio": "none"}, {"aggregation.rule": "median"}):
        assert away(**bound) < free / 5


@pytest.mark.parametrize("method", ["fedwcm", "fedavg"])
def test_one_upload_plants_no_backdoor_under_the_default_bounds(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client of ten sends ten times what it has learnt from marked samples, in the last round."""
    monkeypatch.setattr(measure_one_client, "ROUNDS", 8)
    monkeypatch.setitem(measure_one_client.RUN, "run.rounds", 8)
    monkeypatch.setitem(measure_one_client.RUN, "run.eval_every", 8)
    bounds = {key: value for key, value in FLOWER_DEFAULTS.items() if key.startswith("aggregation.")}
    success = [measure_one_client.outcome(method, dict(own), 1, "backdoor once", 0) for own in ({}, bounds)]
    assert success[0] > 0.5
    assert success[1] < 0.1


@pytest.mark.parametrize(("method", "bounded"), [("scaffold", False), ("fedwcm", True)])
def test_a_run_without_a_bound_on_the_length_of_uploads_says_so(
    method: str, bounded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    finish(grid(method, **FULL, **{"run.rounds": 1}))
    assert ("one client that lies can spoil the run" in caplog.text) is not bounded


def test_one_faulty_client_does_not_end_a_run_in_which_it_is_the_only_one_asked() -> None:
    nodes = grid("fedavg", strike(poison, kind=TRAIN), **{"run.rounds": 4, "participation.fraction": 1 / CLIENTS})
    with pytest.raises(RuntimeError, match=r"no answer was used in any round.*has a NaN"):
        finish(nodes)
    assert sum(kind == TRAIN for _, kind, _ in nodes.log) == 4


@pytest.mark.parametrize(("clients", "poisoners", "ends"), [(4, 2, False), (5, 2, False), (5, 3, True)])
@pytest.mark.parametrize("needed", [1, 4])
def test_a_run_has_diverged_when_more_than_half_of_the_updates_are_not_finite(
    clients: int, poisoners: int, ends: bool, needed: int
) -> None:
    """As in the simulator; too few answers for a step are another matter."""
    changes = {"run.rounds": 2, "flower.min_clients": needed, "flower.clients": clients}
    nodes = grid("fedavg", strike(poison, range(poisoners), TRAIN, {1}), clients=clients, **FULL, **changes)
    expected = pytest.raises(DivergedError, match="3 of 5 updates have a NaN") if ends else nullcontext()
    with expected:
        finish(nodes)
