"""Secure aggregation: Flower's own mod on the clients, our server, and sums that are those of plain uploads."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.mod import fixedclipping_mod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from fedwcm.engine.rounds import DivergedError
from fedwcm.experiment.run import Run
from fedwcm.flower import client_app
from fedwcm.methods import METHODS

from .federation import CLIENTS, EVERYBODY, FULL, data, finish, grid, in_simulator, model
from .test_variances import with_batch_norm
from .wire import Mischief, honest

ALL = {**FULL, "run.rounds": 2, "local.epochs": "none", "local.steps": 3}
"""With equal numbers of steps, FedCM and SCAFFOLD need one sum: two would show single clients among five."""
SECURE = {"flower.secure_aggregation": True, **ALL}


def run_federation(method: str, mischief: Any = honest, mods: Any = (secaggplus_mod,), **changes: Any) -> Run:
    app = client_app(model=model, data=data, mods=list(mods))
    return finish(grid(method, mischief, app=app, **{**SECURE, **changes}))


def stage_of(request: Message) -> str | None:
    """The stage of the protocol that a message belongs to; the mod takes its name out of the message."""
    if request.metadata.message_type != "train.secure":
        return None
    keys = request.content.config_records[RECORD_KEY_CONFIGS]
    signs = {
        Key.THRESHOLD: Stage.SETUP,
        Key.SOURCE_LIST: Stage.COLLECT_MASKED_VECTORS,
        Key.ACTIVE_NODE_ID_LIST: Stage.UNMASK,
    }
    return next((stage for sign, stage in signs.items() if sign in keys), Stage.SHARE_KEYS)


def silent(stage: str, clients: set[int], round_: int) -> Mischief:
    """These clients drop out at one stage of one round."""

    def mischief(client: int, request: Message, reply: Message) -> Message | None:
        hit = client in clients and request.metadata.group_id == str(round_) and stage_of(request) == stage
        return None if hit else reply

    return mischief


def assert_close(finished: Run, expected: Run) -> None:
    for name, tensor in expected.model.items():
        torch.testing.assert_close(finished.model[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["fedcm", "mime", "fedwcm"])
def test_the_model_is_that_of_plain_sums(method: str) -> None:
    """One sum or two of them, a first phase, weights that clients report: all are linear."""
    assert_close(run_federation(method), in_simulator(method, **ALL))


def test_no_upload_leaves_a_client_but_masked() -> None:
    """Without the masks the increments of these clients would be in a thousandth of the numbers' range."""
    seen: list[Any] = []

    def watch(client: int, request: Message, reply: Message) -> Message:
        assert not any(reply.content.array_records.values())
        if stage_of(request) == Stage.COLLECT_MASKED_VECTORS:
            masked = reply.content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
            seen.append(np.frombuffer(masked[1][-8 * 600 :], dtype=np.int64))  # type: ignore[arg-type]
        return reply

    finished = run_federation("fedavg", watch)
    numbers = np.concatenate(seen) / 2**32
    assert len(seen) == CLIENTS * 2
    np.testing.assert_allclose(np.quantile(numbers, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.03)
    size = sum(tensor.numel() for tensor in finished.model.values())
    assert finished.history[0].bytes_up == CLIENTS * 8 * (1 + size)


@pytest.mark.slow
def test_gradients_for_each_class_leave_a_client_masked_too() -> None:
    def watch(client: int, request: Message, reply: Message) -> Message:
        assert not any(reply.content.array_records.values())
        if "numbers" in reply.content.metric_records:
            assert set(reply.content.metric_records["numbers"]) == {"lr"}
        return reply

    (record,) = run_federation("creff", watch, **{"run.rounds": 1}).history
    assert record.participants == CLIENTS


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.COLLECT_MASKED_VECTORS])
def test_a_client_that_drops_out_is_left_out_of_sum_and_state(stage: str) -> None:
    """SCAFFOLD's later rounds agree only if server and client agree that this answer was not used."""
    finished = run_federation("scaffold", silent(stage, {1}, 1), **{"run.rounds": 4, "flower.timeout": 1.0})
    assert finished.history[0].left_out == {"1": "no answer within 1 s"}
    assert finished.history[0].clients == (0, 2, 3, 4)
    assert finished.history[-1].clients == (0, 1, 2, 3, 4)
    assert_close(finished, in_simulator("scaffold", [r.clients or () for r in finished.history], **ALL))


def test_a_client_that_has_sent_its_vector_may_drop_out() -> None:
    finished = run_federation("fedcm", silent(Stage.UNMASK, {3}, 2))
    assert finished.history[1].left_out is None
    assert_close(finished, in_simulator("fedcm", **ALL))


def test_a_client_lost_between_two_sums_of_a_round_is_not_left_out_of_the_first() -> None:
    """The same sum once with and once without it would be its upload. BatchNorm's buffers are a second sum."""
    stages = Counter[str | None]()

    def mischief(client: int, request: Message, reply: Message) -> Message | None:
        stage = stage_of(request) if client == 1 and request.metadata.group_id == "2" else None
        stages[stage] += 1
        return None if stage == Stage.COLLECT_MASKED_VECTORS and stages[stage] > 1 else reply

    app = client_app(model=with_batch_norm, data=data, mods=[secaggplus_mod])
    changes = {**SECURE, "flower.timeout": 1.0, "flower.secure_range": 1000.0}
    nodes = grid("fedavg", mischief, app=app, **changes)
    finished = finish(nodes, with_batch_norm)
    assert stages[Stage.COLLECT_MASKED_VECTORS] == 2
    reasons = {client: reason.split(": ", 1)[1] for client, reason in (finished.history[1].left_out or {}).items()}
    assert reasons == dict.fromkeys("01234", "clients [1] were lost between two sums")


def test_with_too_few_shares_the_round_changes_nothing() -> None:
    finished = run_federation("fedavg", silent(Stage.UNMASK, {0, 3}, 2))
    reason = "no sum by secure aggregation: only 3 of 4 needed shares of the secret of client 0 were revealed"
    assert finished.history[1].left_out == dict.fromkeys("01234", reason)
    assert_close(finished, in_simulator("fedavg", [EVERYBODY, []], **ALL))


def test_clients_that_could_not_hide_each_other_are_not_summed() -> None:
    """Two sums over three clients would leave one unknown."""
    few: dict[str, Any] = {"participation.fraction": 0.6}
    changes = few | {"local.epochs": 1, "local.steps": "none", "local.batch_size": 4}  # unequal steps: two sums
    with pytest.raises(RuntimeError, match=r"no answer was used in any round.*clients are too few: "):
        run_federation("fedcm", **changes)


def test_a_sum_in_which_one_client_has_nearly_all_the_weight_is_not_made() -> None:
    """It would be that client's upload."""
    with pytest.raises(RuntimeError, match="1 sums could be combined to the uploads of clients"):
        run_federation("fedwcm[score=local]", **{"aggregation.max_share": "none"})


@pytest.mark.parametrize("method", ["fedcm", "fedwcm", "scaffold"])
def test_two_sums_whose_difference_is_one_client_s_upload_are_not_made(method: str) -> None:
    """Four clients take equally many steps, one takes more: the sums differ by that one alone."""
    sizes = [40, 40, 40, 40, 55]

    def cut(node_config: Any) -> Any:
        return tuple(column[: sizes[node_config["partition-id"]]] for column in large(node_config))

    def large(node_config: Any) -> Any:
        columns = [data({"partition-id": client}) for client in range(CLIENTS)]
        return tuple(np.concatenate(column) for column in zip(*columns, strict=True))

    changes = {**SECURE, "local.epochs": 1, "local.steps": "none", "run.rounds": 6}
    nodes = grid(method, app=client_app(model=model, data=cut, mods=[secaggplus_mod]), **changes)
    with pytest.raises(RuntimeError, match=r"no sum by secure aggregation, 5 times in a row.*local.steps"):
        finish(nodes)
    assert not any(stage == "4" for _, kind, stage in nodes.log if kind == "train.secure")


@pytest.mark.slow
def test_encryption_noise_and_secure_sums_go_together() -> None:
    pytest.importorskip("tenseal", reason="TenSEAL is not installed: pip install 'fedwcm[he]'")
    private: Any = {"privacy.mode": "he", "privacy.epsilon": 1.0, "run.rounds": 1}
    (record,) = run_federation("fedavg", **private).history
    assert (record.participants, record.train_loss) == (CLIENTS, None)


def test_a_method_that_reads_single_uploads_is_refused() -> None:
    assert [name for name, method in METHODS.items() if method.reads_rows] == ["fedic"]
    with pytest.raises(ValueError, match=r"'fedic' is not possible .*: it reads every single upload"):
        run_federation("fedic")


def test_increments_are_bounded_on_the_clients() -> None:
    bound: Any = {"aggregation.max_norm": 0.02}
    expected = in_simulator("fedavg", **ALL, **bound)
    assert_close(run_federation("fedavg", **bound), expected)
    assert_close(run_federation("fedavg", mods=[secaggplus_mod, fixedclipping_mod], **bound), expected)


def test_an_entry_beyond_the_range_is_not_cut_off_silently() -> None:
    with pytest.raises(RuntimeError, match=r"flower.secure_range = 1e-05 is the largest"):
        run_federation("fedavg", **{"flower.secure_range": 1e-5})


@pytest.mark.parametrize(
    ("mods", "secure", "reason"),
    [
        ((), True, "this client's app must have mods=[secaggplus_mod]"),
        ((secaggplus_mod,), False, "sends no upload without it"),
    ],
)
def test_client_and_server_must_agree(
    mods: Any, secure: bool, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError, match="0 clients connected"):
        run_federation("fedavg", mods=mods, **{"flower.secure_aggregation": secure})
    assert any(reason in line for line in caplog.messages)


def test_what_could_protect_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="secaggplus_mod must be the first mod"):
        client_app(model=model, data=data, mods=[fixedclipping_mod, secaggplus_mod])
    with pytest.raises(ValueError, match="it needs every single upload"):
        run_federation("fedavg", **{"aggregation.rule": "median"})


def test_a_run_that_diverges_ends_though_the_server_sees_no_upload() -> None:
    with pytest.raises(DivergedError, match="5 of 5 updates have a NaN or an infinity in round"):
        run_federation("fedavg", **{"local.lr": 1e30, "local.clip": "none"})
