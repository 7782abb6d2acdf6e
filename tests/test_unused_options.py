"""The law of options: each changes the run, or says what it needs to have an effect and is refused without it."""

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import combinations, product
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

import fedwcm
from fedwcm.config.without_effect import component_needs
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.losses import LOSSES
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.losses.grab import GraB
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg
from fedwcm.testing import _engine, _run_rounds
from fedwcm.utils.field_types import field_types
from tests.test_contract import CHEAP

RUN: dict[str, Any] = {"dataset": "digits", "clients": 6, "rounds": 1, "epochs": 1}
SETTINGS = {**CHEAP, "fedwmsam": {"alpha": 0.3}}  # within the bounds that its alpha moves in
COMPONENTS: dict[str, type[Any]] = {
    **{name: METHODS[name] for name in [*METHODS, "mofedsam+wcm", "fedavg-m+wcm"] if name != "clip2fl"},
    **{f"loss {name}": LOSSES[name] for name in LOSSES if name != "distillation"},
}
"""All but those that read a teacher's file."""


def other_values(component: Any, option: str) -> list[Any]:
    """Values of an option that differ from the one it has."""
    kind, value = field_types(type(component))[option], getattr(component, option)
    if get_origin(kind) is Literal:
        return [each for each in get_args(kind) if each != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    return [0.5 if value is None else value * 0.5]


def variants(component: Any) -> Iterator[Any]:
    """The component with up to two options changed; numbers also to 0 and 1, which turn others off."""
    names = [field.name for field in fields(component)]
    values = {name: [*other_values(component, name), 0.0, 1.0] for name in names}
    for chosen in (pair for size in range(3) for pair in combinations(names, size)):
        for setting in product(*(values[name] for name in chosen)):
            kept = dict(zip(chosen, setting, strict=True))
            if all(type(getattr(component, name)) is type(value) for name, value in kept.items()):
                try:
                    yield replace(component, **kept)
                except ValueError:
                    continue


def result(component: Method | Loss) -> torch.Tensor:
    """The bits of the evaluated model after a few rounds with a method, or with a loss."""
    loss: Loss = component if isinstance(component, Loss) else CrossEntropy()
    if isinstance(component, Method) and component.name == "fedgrab":
        loss = GraB()  # which reads what its server sends
    method = component if isinstance(component, Method) else FedAvg()
    engine = _engine(method, loss)
    state = _run_rounds(engine, 18 if component.name == "ldam" else 3)  # its weights come late
    return engine.model(state)[0]


@pytest.mark.parametrize("name", COMPONENTS)
def test_declared_options_without_effect_leave_the_bits_of_a_run(name: str) -> None:
    cls = COMPONENTS[name]
    for option, needs in component_needs(cls).items():
        off = next(each for each in variants(cls(**SETTINGS.get(name, {}))) if not needs.condition(each))
        before = result(off)
        for value in other_values(off, option):
            assert torch.equal(result(replace(off, **{option: value})), before), (option, value, off)


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_other_option_changes_the_run(name: str) -> None:
    cls = COMPONENTS[name]
    component = cls(**SETTINGS.get(name, {}))
    before, needs = result(component), component_needs(cls)
    for field in fields(component):
        if field.name in needs and not needs[field.name].condition(component):
            continue
        changed = [
            result(replace(component, **{field.name: value})) for value in other_values(component, field.name)
        ]
        assert not all(torch.equal(model, before) for model in changed), field.name


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "fedwcm+[alpha_rule=discrepancy]",
            {},
            r"method.alpha_rule = 'discrepancy' .* local without adaptive = true",
        ),
        ("fedwcm+[q=off]", {}, r"method.q = 'off' is not allowed: it must be ratio without adaptive = true"),
        ("fedwcm[average=samples]", {}, r"method.average = 'samples' .* uniform without weighting = false"),
        ("fedavg", {"loss": "class_weights[beta=0.5]"}, r"loss.beta = 0.5 .* 0.9999 without scheme = effective"),
        (
            "fedavg",
            {"settings": {"run.workers": 2, "run.backend": "vectorized"}},
            "run.workers = 2 .* 0 without run.backend = auto, par",
        ),
        ("fedavg", {"settings": {"local.warmup": 1}}, "local.warmup = 1 .* below run.rounds = 1"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(
    method: str, options: dict[str, Any], message: str, tmp_path: Any
) -> None:
    with pytest.raises(ValueError, match=message):
        fedwcm.run(method, **options, **RUN)
    with pytest.raises(ValueError, match=message):
        fedwcm.compare([method], [0], tmp_path, **options, **RUN)
