"""The contract that every method and loss keeps, as checks that anyone may run on one of their own.

    from fedwcm.testing import check_loss, check_method

    def test_my_method():
        check_method(MyMethod)

    def test_my_loss():
        check_loss(MyLoss())

Each check runs a few rounds on a small federation with clients of unequal size. A check that fails says which law
is broken.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from fedwcm.config.options import make, plain
from fedwcm.core.batch import Batch, InMemoryFederation, Outputs
from fedwcm.core.disclosure import contributions, decode_total
from fedwcm.core.loss import Loss, LossGradient
from fedwcm.core.method import Method, PersonalModels, ServerTraining
from fedwcm.core.types import Clients, Cohort, Context, Population, Vec
from fedwcm.engine import step
from fedwcm.engine.backends.in_process import InProcess
from fedwcm.engine.backends.plan import stacked_forward
from fedwcm.engine.client import Broadcast, ClientTrainer
from fedwcm.engine.forward import SequentialForward
from fedwcm.engine.hook_checks import own_model
from fedwcm.engine.network import Network
from fedwcm.engine.options import LearningRate, OptimizerOptions, ParticipationOptions
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.engine.server_data import ServerSamples
from fedwcm.engine.store import ClientStore
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.samplers.uniform import Uniform
from fedwcm.utils.field_types import undecorated_fields

SIZES = (23, 9, 40, 12, 31, 17)
CLASSES, FEATURES, SEED = 3, 6, 7


def check_method(cls: type[Method], options: dict[str, Any] | None = None, loss: Loss | None = None) -> None:
    """Run every check on a method with these options (its defaults if none) and loss (cross-entropy).

    Methods of this package must be documented as well (`DOCUMENTATION`).
    """
    for check in (*CHECKS, *DOCUMENTATION) if cls.__module__.startswith("fedwcm.") else CHECKS:
        check(cls, options or {}, loss or CrossEntropy())


def check_loss(loss: Loss | type[Loss]) -> None:
    """Run every check on a loss, or a class with its defaults, trained by FedAvg."""
    loss = loss() if isinstance(loss, type) else loss
    for check in LOSS_CHECKS:
        check(loss)


def check_padding_does_not_count(loss: Loss) -> None:
    """Check that stacked clients, whose shorter batches are padded, have the losses of one at a time."""
    with _default_dtype(torch.float64):
        engines = [_engine(Method(), loss, dtype=torch.float64, stacked=stacked) for stacked in (False, True)]
        ends = [engine.step(_start(engine)) for engine in engines]
    (alone, single), (together, padded) = ends
    gap = float((alone.x - together.x).abs().max())
    assert gap < 1e-7, (
        f"stacked clients have the loss {padded.train_loss}, one at a time {single.train_loss}, and their "
        f"models differ by {gap}: average over the samples of each client with batch.mean(…), not with .mean(1)"
    )


def check_client_state_keeps_its_layout(loss: Loss) -> None:
    """Check that what a loss keeps for a client has the same keys, shapes and dtypes after a round as before."""
    engine = _engine(Method(), loss)
    trainer, ids = engine.trainer, np.array([0])
    shards = [engine.federation.shard(0)]
    x, buffers = trainer.forward.network.initial()
    before = trainer.initial_state(trainer.clients(ids, shards), x, buffers)
    after = trainer.train(ids, shards, before, Broadcast(0, x, buffers, {}, 0.1)).state
    layouts = [{key: (v.shape, v.dtype) for key, v in state.items()} for state in (before, after)]
    assert layouts[0] == layouts[1], f"the client state changed its layout from {layouts[0]} to {layouts[1]}"


LOSS_CHECKS: tuple[Callable[[Loss], None], ...] = (
    check_client_state_keeps_its_layout,
    check_padding_does_not_count,
)
"""What every loss keeps."""


def check_frozen_dataclass(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that hyper-parameters are fields of a frozen dataclass."""
    assert is_dataclass(cls), "a method must be a dataclass"
    assert cls.__dataclass_params__.frozen, "a method must be a frozen dataclass"  # type: ignore[attr-defined]
    lost = undecorated_fields(cls)
    assert lost is None, lost


def check_it_is_documented(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that the registry has a name for it, the file or the class its paper, and the class its options."""
    pages = [inspect.getdoc(place) or "" for place in (inspect.getmodule(cls), cls)]
    assert re.search(r"\b(19|20)\d\d\b", "\n".join(pages)), "the docstring must cite a source, with its year"
    described = " ".join(inspect.getdoc(base) or "" for base in cls.__mro__)
    for field in fields(cls):
        assert f"{field.name}:" in described, f"the option {field.name} must be described under Args"
    assert cls.name, "a method must have a name"


def check_configuration_round_trips(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that what TOML can hold of a method's options makes the same method again."""
    method = cls(**options)
    assert make(cls, plain(method), "method") == method


def check_hooks_change_none_of_their_arguments(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that what hooks are given is the same after the call, and running a round again gives the same."""

    def watch(name: str, hook: Hook) -> Hook:
        def call(self: Method, *arguments: Any) -> Any:
            before = [torch.as_tensor(value).clone() for _, value in _parts_of(arguments)]
            result = hook(self, *arguments)
            for (key, value), copy in zip(_parts_of(arguments), before, strict=True):
                assert torch.equal(torch.as_tensor(value), copy), f"{name} changed its argument{key}"
            return result

        return call

    engine = _engine(_wrap_hooks(cls, HOOKS, watch)(**options), loss)
    before = _run_rounds(engine, 2)
    after, record = engine.step(before)
    engine.trainer.method.eval_params(after.x, after.method)
    if not engine.store.keeps_anything:
        again, record_again = engine.step(before)
        _assert_same(after, again, "the same round run twice gave two results")
        assert record == record_again


def check_shapes_and_dtypes_are_stable(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that the state keeps its keys, shapes and dtypes between rounds, and vectors the model's dtype."""
    for dtype in (torch.float32, torch.float64):
        engine = _engine(cls(**options), loss, dtype=dtype)
        with _default_dtype(dtype):
            states = [_run_rounds(engine, rounds) for rounds in (1, 3)]
        layouts = [{key: (v.shape, v.dtype) for key, v in state.method.items()} for state in states]
        assert layouts[0] == layouts[1], "the server state changed its layout"
        assert states[1].x.dtype == dtype
        for key, value in states[1].method.items():
            for state in states:
                own = state.method[key].data_ptr() != state.x.data_ptr()
                assert own, f"the state's {key} is the model itself, which cannot be stored twice: clone it"
            if value.shape == states[1].x.shape:
                assert value.dtype == dtype, f"the state's {key} is a vector of {value.dtype}"


def check_rows_of_a_hook_do_not_mix(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that what a hook returns for a client depends on that client alone, not on others of its block."""
    with _default_dtype(torch.float64), patch.object(step, "trace_direction", return_value=None):
        alone, together = (_rows_by_hook(cls, options, loss, stacked) for stacked in (False, True))
    for (round_, order, client, key), row in sorted(alone.items(), key=lambda item: item[0]):
        other = together[round_, order, client, key]
        assert torch.allclose(row, other, rtol=1e-6, atol=1e-8), (
            f"{cls.__qualname__}.{ROW_HOOKS[order]} mixes the rows of its block: what it returns for client "
            f"{client} in round {round_ + 1}{key} depends on others; work on the last axis (dim=-1, keepdim=True)"
        )


ROW_HOOKS = ("init_client", "local_lr", "probe", "prepare", "start", "direction", "conclude", "finish")
"""Hooks that return a row for each client of their block, in the order in which a round calls them."""

ON_SERVER = ("init", "broadcast", "probe_broadcast", "after_probe", "weights", "update", "refine", "eval_params")
HOOKS = (*ROW_HOOKS, *ON_SERVER)
"""Hooks that must leave what they are given as it is."""

Hook = Callable[..., Any]
Call = tuple[int, int, int, str]
"""The round, the position of the hook among `ROW_HOOKS`, the client, and which part of what it returned."""


def _rows_by_hook(cls: type[Method], options: dict[str, Any], loss: Loss, stacked: bool) -> dict[Call, Tensor]:
    """Return the row that each hook returned for each client, at its first call of a round."""
    rows: dict[Call, Tensor] = {}

    def record(name: str, hook: Hook) -> Hook:
        def call(self: Method, *arguments: Any) -> Any:
            result, block = hook(self, *arguments), arguments[-1]
            round_, ids = (0, block.ids) if isinstance(block, Clients) else (block.round, block.clients.ids)
            for key, values in _parts_of(result):
                for k, client in enumerate(ids if np.shape(values)[:1] == ids.shape else ()):  # else refused
                    row = torch.as_tensor(values[k], dtype=torch.float64)
                    rows.setdefault((round_, ROW_HOOKS.index(name), int(client), key), row.clone())
            return result

        return call

    watched = _wrap_hooks(cls, ROW_HOOKS, record)
    _run_rounds(_engine(watched(**options), loss, dtype=torch.float64, stacked=stacked), 3)
    return rows


def _wrap_hooks(cls: type[Method], names: Sequence[str], wrap: Callable[[str, Hook], Hook]) -> type[Method]:
    """Return the method with these hooks, where it has them, wrapped."""
    hooks = {name: getattr(cls, name) for name in names if hasattr(cls, name)}
    return type(cls.__name__, (cls,), {name: wraps(hook)(wrap(name, hook)) for name, hook in hooks.items()})


def _parts_of(result: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors and arrays that a hook takes or returns, with a name for each."""
    if isinstance(result, (Tensor, np.ndarray)):
        yield name, result
    elif isinstance(result, (Context, Cohort)):
        yield from _parts_of({part.name: getattr(result, part.name) for part in fields(result)})
    elif isinstance(result, dict):
        for key, value in result.items():
            yield from _parts_of(value, f" ({key})")
    elif isinstance(result, tuple):
        for part in result:
            yield from _parts_of(part, name)


def check_engines_agree(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that one client at a time and all clients stacked give the same model."""
    gap = _gap_between(cls, options, loss, {"stacked": False}, {"stacked": True})
    assert gap < 1e-7, f"engines differ by {gap}"


def check_block_size_does_not_matter(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that blocks of two clients and of five give the same model."""
    gap = _gap_between(cls, options, loss, {"stacked": True, "block": 2}, {"stacked": True, "block": 5})
    assert gap < 1e-7, f"the division into blocks changed the model by {gap}"


def _gap_between(cls: type[Method], options: dict[str, Any], loss: Loss, *engines: dict[str, Any]) -> float:
    """Return how far the models of two engines lie apart after four rounds."""
    with _default_dtype(torch.float64):
        one, other = (
            _run_rounds(_engine(cls(**options), loss, dtype=torch.float64, **engine), 4).x for engine in engines
        )
    return float((one - other).abs().max())


def check_resuming_is_exact(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that two rounds, all state into a new engine, and two more have the bits of four in a row."""
    whole = _run_rounds(_engine(cls(**options), loss), 4)
    first, second = _engine(cls(**options), loss), _engine(cls(**options), loss)
    end = _run_rounds(first, 2)
    visited = first.store.visited_clients()
    if len(visited):
        second.store.write(visited, first.store.read(visited, torch.device("cpu")))
    for _ in range(2):
        end, _ = second.step(end)
    _assert_same(whole, end, "a resumed run went another way")


def check_a_common_stationary_point_stays(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that no method moves where every client's gradient is zero, unless its server has data of its own."""
    if issubclass(cls, ServerTraining):
        return
    engine = _engine(cls(**options), _Flat())
    start = end = _start(engine)
    for _ in range(2):
        end, _ = engine.step(end)
    evaluated = engine.trainer.method.eval_params(end.x, end.method)
    kept = _outside_the_head(engine, torch.stack([start.x, evaluated]))
    assert torch.allclose(kept[0], kept[1], atol=1e-6), "the model left a stationary point"
    assert torch.allclose(start.x, end.x, atol=1e-6), "the model left a stationary point"


def check_it_learns(cls: type[Method], options: dict[str, Any], loss: Loss) -> None:
    """Check that twenty rounds with the defaults raise the accuracy on the clients' own data well above chance."""
    engine = _engine(cls(**options), loss)
    end = _run_rounds(engine, 20)
    method, network, hits = engine.trainer.method, engine.trainer.forward.network, list[Tensor]()
    for client in range(len(SIZES)):
        x, shard = method.eval_params(end.x, end.method), engine.federation.shard(client)
        if isinstance(method, PersonalModels):
            c = engine.store.read(np.array([client]), x.device)
            x = own_model(method, x, end.method, c, network.layout)
        network.point_parameters(x)
        with torch.no_grad():
            scores = network.module.eval()(shard.store.inputs[torch.from_numpy(shard.rows)])
        hits.append(scores.argmax(dim=-1) == torch.from_numpy(shard.labels))
    accuracy = float(torch.cat(hits).double().mean())
    assert accuracy > 1.6 / CLASSES, f"accuracy is {accuracy:.2f} after 20 rounds"


Check = Callable[[type[Method], dict[str, Any], Loss], None]

CHECKS: tuple[Check, ...] = (
    check_frozen_dataclass,
    check_configuration_round_trips,
    check_hooks_change_none_of_their_arguments,
    check_shapes_and_dtypes_are_stable,
    check_rows_of_a_hook_do_not_mix,
    check_engines_agree,
    check_block_size_does_not_matter,
    check_resuming_is_exact,
    check_a_common_stationary_point_stays,
    check_it_learns,
)
"""What every method keeps."""

DOCUMENTATION: tuple[Check, ...] = (check_it_is_documented,)
"""What the methods of this package keep besides."""


class _Flat(CrossEntropy):
    """Cross-entropy times zero: every point is stationary."""

    def with_gradient(self, outputs: Outputs, batch: Batch, ctx: Context) -> LossGradient:
        loss, by_logits, _ = super().with_gradient(outputs, batch, ctx)
        return LossGradient(loss * 0.0, by_logits * 0.0)


def _engine(
    method: Method, loss: Loss, *, dtype: torch.dtype = torch.float32, stacked: bool = False, block: int = 64
) -> Rounds:
    federation = _federation(dtype)
    network = Network(_model().to(dtype))
    totals, distance = decode_total(contributions(federation.counts, None, None).sum(axis=0), len(SIZES))
    known = (float(federation.samples.mean()), totals / totals.sum())
    population = Population(len(SIZES), CLASSES, *known, rounds=20, epochs=2, batch_size=8, deviation=distance)
    trainer = ClientTrainer(
        method=method,
        loss=loss,
        sampler=Uniform(),
        augmentation=None,
        forward=stacked_forward(network) if stacked else SequentialForward(network),
        population=population,
        optimizer=OptimizerOptions(),
        seed=SEED,
    )
    first = trainer.clients(np.array([0]), [federation.shard(0)])
    store = ClientStore(len(SIZES), trainer.initial_state(first, *network.initial()))
    backend = InProcess(trainer, federation, store, block if stacked else 1)
    learning_rate = LearningRate(lr=0.1, schedule="exponential", lr_decay=0.99)
    every = federation.shard(0).store
    own = ServerSamples(network, every.inputs, every.labels) if isinstance(method, ServerTraining) else None
    participation = ParticipationOptions(fraction=0.7)
    return Rounds(trainer, federation, participation, backend, store, learning_rate, own_data=own)


def _federation(dtype: torch.dtype) -> InMemoryFederation:
    rng = np.random.default_rng(SEED)
    labels = rng.choice(CLASSES, sum(SIZES), p=[0.6, 0.3, 0.1])
    labels[:CLASSES] = range(CLASSES)
    inputs = 3 * np.eye(CLASSES, FEATURES)[labels] + rng.normal(size=(len(labels), FEATURES))
    parts = np.split(rng.permutation(len(labels)), np.cumsum(SIZES)[:-1])
    return InMemoryFederation(torch.as_tensor(inputs, dtype=dtype), labels, parts, CLASSES)


def _model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def _start(engine: Rounds) -> ServerState:
    return engine.start(*engine.trainer.forward.network.initial())


def _run_rounds(engine: Rounds, rounds: int) -> ServerState:
    state = _start(engine)
    for _ in range(rounds):
        state, _ = engine.step(state)
    return state


def _assert_same(one: ServerState, other: ServerState, complaint: str) -> None:
    assert torch.equal(one.x, other.x), f"{complaint}: x"
    for key, value in one.method.items():
        assert torch.equal(value, other.method[key]), f"{complaint}: {key}"


def _outside_the_head(engine: Rounds, models: Vec) -> Vec:
    """Return the parameters but for the head's, which a method may re-train for evaluation."""
    head = {part.name for part in engine.trainer.forward.network.layout.head_slices}
    named = engine.trainer.forward.network.layout.unflatten(models)
    return torch.cat([value.flatten(1) for name, value in named.items() if name not in head], dim=1)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
