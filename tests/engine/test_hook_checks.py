"""What components of the user's own return is checked under the name of their hook."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.core.method import PersonalModels

RUN: dict[str, Any] = {"dataset": "digits", "clients": 4, "rounds": 1, "epochs": 1, "participation": 1.0}


def method(**hooks: Any) -> Any:
    """A method with these hooks in place of FedAvg's."""
    return dataclass(frozen=True, kw_only=True)(type("Own", (fedwcm.Method,), hooks))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda k: np.ones(k + 1), r"an array of shape \(5,\): it must be \(4,\), one per client"),
        (lambda k: np.float64(0.5), "a float64: it must return a NumPy array of numbers"),
        (lambda k: [0.25] * k, "a list: it must return a NumPy array of numbers"),
        (lambda k: np.array(["a"] * k), "an array of <U1: it must return a NumPy array of numbers"),
        (lambda k: np.array([0.5, np.nan, 0, 0.5]), "nan for client 1 of the round: it must be a finite number"),
    ],
)
def test_weights_are_one_finite_number_for_each_client(made: Any, message: str) -> None:
    own = method(
        weights=lambda self, s, cohort: made(len(cohort)), update=lambda self, x, s, uploads, cohort: (x, s)
    )
    with pytest.raises(ValueError, match=rf"Own\.\S+ returned {message}"):
        fedwcm.run(own, **RUN)


@pytest.mark.parametrize("backend", ["sequential", "vectorized"])
def test_a_direction_comes_with_the_state_of_the_clients(backend: Any) -> None:
    def direction(self: Any, w: Any, grad: Any, c: Any, ctx: Any) -> Any:
        return grad(w)

    def bent(self: Any, w: Any, grad: Any, c: Any, ctx: Any) -> Any:
        return grad(w).abs()  # not affine: called with tensors only

    for hook, got in ((direction, "a Symbol"), (bent, "a Tensor")):
        expected = rf"Own\.{hook.__name__} returned {got}: it must return a tuple \(direction, client state\)"
        with pytest.raises(ValueError, match=expected):
            fedwcm.run(method(direction=hook), backend=backend, **RUN)


def test_the_other_hooks_return_all_their_parts() -> None:
    def finish(self: Any, w: Any, c: Any, ctx: Any) -> Any:
        return {"delta": w - ctx.x}, c

    def update(self: Any, x: Any, s: Any, uploads: Any, cohort: Any) -> Any:
        return x

    with pytest.raises(ValueError, match=r"Own\.finish returned a tuple of 2: .*\(upload, report, client state\)"):
        fedwcm.run(method(finish=finish), **RUN)
    with pytest.raises(ValueError, match=r"Own\.update returned a Tensor: .*\(model, server state\)"):
        fedwcm.run(method(update=update), **RUN)


def test_what_a_client_keeps_or_is_given_has_a_row_for_each() -> None:
    shared: Any = method(init_client=lambda self, x, clients: {"own": x.clone()})
    with pytest.raises(ValueError, match=r"returned 'own' of shape .* in the client state: it must be \(1,"):
        fedwcm.run(shared, **RUN)

    @dataclass(frozen=True, kw_only=True)
    class Shared(PersonalModels, fedwcm.Method):
        def init_client(self, x: Any, clients: Any) -> Any:
            return {"own": x.repeat(len(clients), 1)}

        def finish(self, w: Any, c: Any, ctx: Any) -> Any:
            return {"delta": w - ctx.x}, {}, {"own": w.clone()}

        def eval_clients(self, x: Any, s: Any, c: Any, layout: Any) -> Any:
            return c["own"][0]

    with pytest.raises(ValueError, match=r"eval_clients returned a model of shape \(\d+,\): .* \(1, \d+\)"):
        fedwcm.run(Shared, **RUN | {"dataset": [(np.eye(20, 3), np.arange(20) % 2)] * 4, "clients": None})


def test_an_unknown_upload_names_those_that_there_are() -> None:
    def update(self: Any, x: Any, s: Any, uploads: Any, cohort: Any) -> Any:
        return x + uploads.sum("dleta", self.weights(s, cohort)), s

    with pytest.raises(ValueError, match=r"there is no upload 'dleta': .*finish uploads is 'delta'"):
        fedwcm.run(method(update=update), **RUN)


@pytest.mark.parametrize("backend", ["sequential", "vectorized"])
def test_a_loss_is_one_value_for_each_client(backend: Any) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Whole(fedwcm.Loss):
        def __call__(self, outputs: Any, batch: Any, o: Any, ctx: Any) -> Any:
            return torch.logsumexp(outputs.logits, dim=-1).mean(), o

    @dataclass(frozen=True, kw_only=True)
    class Alone(fedwcm.Loss):
        def __call__(self, outputs: Any, batch: Any, o: Any, ctx: Any) -> Any:
            return batch.mean(torch.logsumexp(outputs.logits, dim=-1))

    with pytest.raises(
        ValueError, match=r"Whole\.__call__ returned a tensor of shape \(\) as the loss: .*batch\.mean"
    ):
        fedwcm.run("fedavg", loss=Whole(), backend=backend, **RUN)
    with pytest.raises(ValueError, match=r"Alone\.__call__ returned a Tensor: .*\(losses, client state\)"):
        fedwcm.run("fedavg", loss=Alone(), backend=backend, **RUN)


def test_a_loss_that_counts_padding_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Padded(fedwcm.Loss):
        def __call__(self, outputs: Any, batch: Any, o: Any, ctx: Any) -> Any:
            return torch.logsumexp(outputs.logits, dim=-1).mean(1), o

    unequal = RUN | {"dataset": "digits", "partition": "fedgrab", "clients": 4}
    with pytest.raises(ValueError, match=r"Padded\.__call__ counts samples that only pad .* batch\.mean"):
        fedwcm.run("fedavg", loss=Padded(), backend="vectorized", **unequal)


@pytest.mark.parametrize(("made", "got"), [([], "0 positions"), ([0], "1 positions"), (None, "a NoneType")])
def test_an_epoch_visits_as_many_samples_as_there_are(made: Any, got: str) -> None:
    class Short(fedwcm.Sampler):
        def epoch(self, labels: Any, rng: Any) -> Any:
            return None if made is None else np.array(made, dtype=np.int64)

    with pytest.raises(ValueError, match=rf"Short\.epoch returned {got} for a client with \d+ samples"):
        fedwcm.run("fedavg", sampler=Short(), **RUN)


@pytest.mark.parametrize("wrong", [lambda n: np.arange(n) + 1, lambda n: np.arange(n) - 1, np.zeros])
def test_an_epoch_visits_samples_of_the_client(wrong: Any) -> None:
    class Outside(fedwcm.Sampler):
        def epoch(self, labels: Any, rng: Any) -> Any:
            return wrong(len(labels))

    with pytest.raises(
        ValueError, match=r"Outside\.epoch returned positions from .*: they must be integers from 0"
    ):
        fedwcm.run("fedavg", sampler=Outside(), **RUN)


@pytest.mark.parametrize("backend", ["sequential", "vectorized"])
def test_a_loss_has_a_gradient(backend: Any) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Detached(fedwcm.Loss):
        def __call__(self, outputs: Any, batch: Any, o: Any, ctx: Any) -> Any:
            return batch.mean(torch.logsumexp(outputs.logits.detach(), dim=-1)), o

    with pytest.raises(ValueError, match=r"Detached\.__call__ returned a loss without a gradient: .* detach"):
        fedwcm.run("fedavg", loss=Detached(), backend=backend, **RUN)


def test_the_weights_of_one_client_have_no_entropy() -> None:
    record = fedwcm.run("fedavg", **RUN | {"clients": 1}).history[-1]
    assert str(record.weights_entropy) == "0.0"


def shift_received(self: Any, w: Any, grad: Any, c: Any, ctx: Any) -> Any:
    ctx.x.add_(1.0)
    return grad(w), c


def shift_own(self: Any, w: Any, grad: Any, c: Any, ctx: Any) -> Any:
    w.add_(1.0)
    return grad(w), c


def shift_message(self: Any, w: Any, grad: Any, c: Any, ctx: Any) -> Any:
    ctx.message["m"] *= 2.0
    return grad(w), c


def shift_model(self: Any, x: Any, s: Any, uploads: Any, cohort: Any) -> Any:
    x.add_(1.0)
    return x, s


@pytest.mark.parametrize("backend", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("hook", "name"), [(shift_received, "ctx.x"), (shift_own, "w"), (shift_message, "m"), (shift_model, "x")]
)
def test_what_a_hook_is_given_is_not_changed_in_place(hook: Any, name: str, backend: Any) -> None:
    hooks = {"update": hook} if hook is shift_model else {"direction": hook}
    own = method(broadcast=lambda self, s: {"m": torch.ones(2)}, **hooks)
    with pytest.raises(ValueError, match=rf"Own(\.\w+)? changes {name} in place: it must return new values"):
        fedwcm.run(own, backend=backend, **RUN)


def test_an_error_in_a_worker_process_is_the_same_error() -> None:
    with pytest.raises(ValueError, match=r"^Own\.shift_own changes w in place: it must return new values"):
        fedwcm.run(method(direction=shift_own), backend="parallel", settings={"run.workers": 2}, **RUN)


def test_an_update_returns_a_model_of_the_same_shape() -> None:
    own = method(update=lambda self, x, s, uploads, cohort: (x[:3], s))
    with pytest.raises(ValueError, match=r"returned a model of shape \(3,\): it must be of shape \("):
        fedwcm.run(own, **RUN)


class Detached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(64, 10)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.body(x.flatten(1))
        return scores


def test_a_model_whose_scores_have_no_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outputs have no gradient: .* without no_grad\(\) and detach\(\)"):
        fedwcm.run("fedavg", model=Detached(), **RUN)
