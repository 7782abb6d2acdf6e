"""A worker that dies costs time and nothing else; one that fails, or dies again and again, is told of in full."""

import faulthandler
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedwcm
from fedwcm.cli import main
from fedwcm.core.types import Context, Ints, Report, State, Vec
from fedwcm.engine.backends import processes
from fedwcm.engine.backends.errors import WorkerDiedWarning, WorkerError
from fedwcm.engine.client import ClientTrainer
from fedwcm.engine.rounds import Rounds
from fedwcm.engine.store import ClientStore
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg

from ..factories import clusters, linear, make_rounds, make_trainer, mlp, run_rounds
from ..specimens import Counter, Failing
from .support import DIGITS, assert_same_run, needs_fork

pytestmark = needs_fork
ROUNDS = 4


def parallel(method: Any, workers: int = 2) -> Rounds:
    data = clusters()
    return make_rounds(make_trainer(method, data.federation, linear()), data.federation, workers=workers)


def assert_undisturbed(disturbed: Rounds, method: Any) -> None:
    """The same rounds, records and client state as with nobody dying."""
    whole = parallel(method, workers=1)
    for (one, record), (other, same) in zip(run_rounds(disturbed, ROUNDS), run_rounds(whole, ROUNDS), strict=True):
        assert torch.equal(one.x, other.x)
        assert record == same
    kept = [engine.store.read(np.arange(5), torch.device("cpu")) for engine in (disturbed, whole)]
    assert all(torch.equal(kept[0][key], kept[1][key]) for key in kept[1])


def die(number: int) -> None:
    """End this process by a signal, without a trace on the screen."""
    faulthandler.disable()
    os.kill(os.getpid(), number)


@dataclass
class Once:
    """Something that happens once, in whichever process, at the given call for a client."""

    marker: Path
    client: int
    call: int

    def due(self, ids: Ints) -> bool:
        if self.client not in ids:
            return False
        with self.marker.open("a") as file:
            file.write(".")
        return self.marker.stat().st_size == self.call


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_clients_of_a_worker_that_died_are_trained_again(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, run = Once(tmp_path / "calls", client=3, call=2), ClientTrainer.run

    def dying(self: ClientTrainer, task: Any, ids: Ints, *rest: Any) -> Any:
        if once.due(ids):
            die(number)
        return run(self, task, ids, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(ClientTrainer, "run", dying)
        disturbed = parallel(METHODS["scaffold"]())
    name = signal.Signals(number).name
    with pytest.warns(WorkerDiedWarning, match=f"round 2, client 3: a worker process was killed by {name}"):
        assert_undisturbed(disturbed, METHODS["scaffold"]())


def test_a_state_that_a_dying_worker_wrote_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once, stage = Once(tmp_path / "calls", client=2, call=3), ClientStore.stage

    def dying(self: ClientStore, ids: Ints, state: State) -> None:
        if once.due(ids):
            stage(self, ids, {key: torch.full_like(value, 99) for key, value in state.items()})
            os.kill(os.getpid(), signal.SIGKILL)
        stage(self, ids, state)

    with monkeypatch.context() as patched:
        patched.setattr(ClientStore, "stage", dying)
        disturbed = parallel(Counter())
    with pytest.warns(WorkerDiedWarning):
        assert_undisturbed(disturbed, Counter())


def test_a_worker_that_is_killed_while_it_waits_is_replaced() -> None:
    disturbed = parallel(Counter())
    step: Callable[..., Any] = disturbed.backend.run
    killed = []  # type: ignore[var-annotated]

    def killing(*arguments: Any) -> Any:
        if not killed:
            killed.append(multiprocessing.active_children()[0])
            killed[0].kill()
            killed[0].join()
        return step(*arguments)

    object.__setattr__(disturbed.backend, "run", killing)
    with pytest.warns(WorkerDiedWarning, match="SIGKILL"):
        assert_undisturbed(disturbed, Counter())


def test_a_worker_leaves_ctrl_c_to_its_parent_and_ends_when_it_is_told_to() -> None:
    undisturbed = parallel(FedAvg())
    worker = multiprocessing.active_children()[0]
    os.kill(worker.pid or 0, signal.SIGINT)
    worker.join(timeout=0.3)
    assert worker.is_alive()
    worker.terminate()
    worker.join(timeout=30)
    assert worker.exitcode == -signal.SIGTERM
    undisturbed.backend.close()


@dataclass(frozen=True, kw_only=True)
class Killed(FedAvg):
    """The system kills whoever trains this client."""

    client: int
    number: int

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        if self.client in ctx.clients.ids:
            die(self.number)
        return super().finish(w, c, ctx)


@pytest.mark.parametrize(
    ("number", "advice"), [(signal.SIGKILL, r"memory runs out.*run\.workers=1"), (signal.SIGABRT, "fedwcm doctor")]
)
@pytest.mark.filterwarnings("ignore::fedwcm.engine.backends.errors.WorkerDiedWarning")
def test_a_worker_that_dies_again_and_again_ends_the_run_and_says_what_to_do(number: int, advice: str) -> None:
    name = signal.Signals(number).name
    with pytest.raises(WorkerError, match=f"round 1, client 3: .* killed by {name}, like 2 others.*{advice}"):
        run_rounds(parallel(Killed(client=3, number=number)), 1)
    assert processes.ATTEMPTS == 3
    assert not multiprocessing.active_children()


@dataclass(frozen=True, kw_only=True)
class Greedy(FedAvg):
    """Asks for more memory than there is, of torch or of Python."""

    python: bool

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        if self.python:
            raise MemoryError
        torch.empty(2**50)
        return super().finish(w, c, ctx)


@pytest.mark.parametrize("python", [True, False])
def test_out_of_memory_in_a_worker_says_what_to_do(python: bool) -> None:
    with pytest.raises(WorkerError, match=r"round 1, client.*ran out of memory.*run\.workers=1") as caught:
        run_rounds(parallel(Greedy(python=python)), 1)
    assert "Traceback" not in str(caught.value)
    with pytest.raises(WorkerError, match=r"round 1, client 2: ran out of memory.*smaller batches"):
        run_rounds(parallel(Greedy(python=python), workers=1), 1)


def test_out_of_memory_in_an_evaluation_says_what_to_do() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(x.flatten(1))
            return scores if self.training or len(x) < 100 else scores + torch.empty(2**50).sum()

    with pytest.raises(WorkerError, match=r"round 1: ran out of memory.*smaller batches"):
        fedwcm.run("fedavg", dataset="digits", model=Wide(), clients=4, rounds=1, epochs=1, progress=False)


def test_an_error_of_the_users_code_comes_with_one_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WorkerError, match="client 3 cannot count") as caught:
        run_rounds(parallel(Failing(client=3)), 1)
    assert str(caught.value).count("Traceback") == 1
    assert caught.value.__cause__ is None
    monkeypatch.setattr(FedAvg, "finish", lambda *_: 1 / 0)
    options = [*DIGITS, "--rounds", "2", "--backend", "parallel", "--set", "run.workers=2"]
    assert main(["run", "--method", "fedavg", *options, "--out", str(tmp_path / "run"), "--quiet"]) == 1
    output = capsys.readouterr().err
    assert output.startswith("error: round 1, client")
    assert output.count("Traceback") == 1
    assert "ZeroDivisionError" in output


@pytest.mark.filterwarnings("ignore::fedwcm.engine.backends.errors.WorkerDiedWarning")
def test_after_a_failure_the_run_goes_on_from_the_last_round(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dataset": "digits", "clients": 6, "epochs": 1, "rounds": 6, "participation": 1.0}
    settings = {"run.backend": "parallel", "run.workers": 2, "run.checkpoint_every": 1000}
    whole, out = tmp_path / "whole", tmp_path / "run"
    fedwcm.run("scaffold", out=whole, settings=settings, **options)
    finish = METHODS["scaffold"].finish

    def killed(self: Any, w: Vec, c: State, ctx: Context) -> Any:
        if ctx.round == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return finish(self, w, c, ctx)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(METHODS["scaffold"], "finish", killed)
        with pytest.raises(WorkerError, match="round 5"):
            fedwcm.run("scaffold", out=out, settings=settings, **options)
    assert (out / "checkpoints" / "round-000004.safetensors").exists()
    fedwcm.run("scaffold", out=out, resume=True, settings=settings, **options)
    assert_same_run(out, whole)


def test_many_deaths_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth block costs a worker."""
    calls, run = tmp_path / "calls", ClientTrainer.run

    def dying(self: ClientTrainer, task: Any, ids: Ints, *rest: Any) -> Any:
        with calls.open("a") as file:
            file.write(".")
        if calls.stat().st_size % 4 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(self, task, ids, *rest)

    data = clusters()
    with monkeypatch.context() as patched:
        patched.setattr(ClientTrainer, "run", dying)
        training = make_trainer(Counter(), data.federation, mlp())
        disturbed = make_rounds(training, data.federation, workers=3)
        with pytest.warns(WorkerDiedWarning):
            played = run_rounds(disturbed, ROUNDS)
    whole = run_rounds(make_rounds(make_trainer(Counter(), data.federation, mlp()), data.federation), ROUNDS)
    assert torch.equal(played[-1][0].x, whole[-1][0].x)
    assert calls.stat().st_size > 5 * ROUNDS
