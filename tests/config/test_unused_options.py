"""The law of options: each changes the run, or says what it needs to have an effect and is refused without it."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from torch import nn

import fedwcm
from fedwcm.cli import main
from fedwcm.config.settings import from_settings
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.data import load_dataset
from fedwcm.data.inputs import FlipCrop
from fedwcm.engine.forward import SequentialForward
from fedwcm.engine.network import Network
from fedwcm.experiment.components import Components, component_needs
from fedwcm.losses import LOSSES
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.losses.fedrela import FedReLaLoss
from fedwcm.losses.fedyoyo import FedYoYoLoss
from fedwcm.losses.grab import GraB
from fedwcm.losses.rucr import RUCRLoss
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedrela import FedReLa
from fedwcm.methods.fedyoyo import FedYoYo
from fedwcm.methods.rucr import RUCR
from fedwcm.reports.warnings import still_rising
from fedwcm.testing import _engine, _run_rounds
from fedwcm.utils.field_types import field_types
from tests.records import round_record
from tests.test_contract import CHEAP

RUN: dict[str, Any] = {"dataset": "digits", "clients": 6, "rounds": 1, "epochs": 1}
SETTINGS = {
    **CHEAP,
    "fedwmsam": {"alpha": 0.3},  # within the bounds that its alpha moves in
    "imbsam": {"tail_share": 0.12},  # half of it holds no class
    "ccvr": {**CHEAP["ccvr"], "last": 19},  # from the second of twenty rounds on
    "fedic": CHEAP["fedic"],
    "fedyoyo": {"group": 4},  # these clients have few samples
    "fedrela": {"start": 0.1},  # its labels, and the weights of LDAM, come from the third of twenty rounds on
    "loss ldam": {"drw": 0.1},
}
ELSEWHERE = {
    ("fedexp", "epsilon"),  # these clients agree too well to extrapolate: tests/methods/test_rivals.py
    ("fedbuff", "power"),  # without a clock no answer is late: tests/engine/test_participation.py
    ("ditto", "lam"),  # changes the clients' own models alone: tests/methods/test_personal.py
    ("rucr", "last"),  # changes what is evaluated before the last round: tests/methods/test_heads.py
    ("loss fedproto", "pull"),  # changes the clients' own models alone: tests/losses/test_last_model.py
    ("loss fedrs", "alpha"),  # these clients have every class: tests/losses/test_rivals.py
}
ROUNDS = {"ccvr": 3, "fedrela": 3, "ldam": 3}
"""Where two rounds do not show what every option does."""

COMPONENTS: dict[str, type[Any]] = {
    **{name: METHODS[name] for name in [*METHODS, "mofedsam+wcm", "fedavg-cheng+wcm"] if name != "clip2fl"},
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


@cache
def result(component: Method | Loss) -> torch.Tensor:
    """The bits of the evaluated model with a method, or with a loss, after two rounds, or as many as it needs."""
    loss: Loss = component if isinstance(component, Loss) else CrossEntropy()
    if isinstance(component, Method) and component.name == "fedgrab":
        loss = GraB()  # which reads what its server sends
    method = component if isinstance(component, Method) else FedAvg()
    if isinstance(component, FedReLaLoss):
        method = FedReLa(start=0.0)  # which sends what it reads
    if isinstance(component, FedYoYo):
        loss = FedYoYoLoss()
    if isinstance(component, RUCRLoss):
        method = RUCR(**CHEAP["rucr"])
    engine = _engine(method, loss)
    state = _run_rounds(engine, ROUNDS.get(component.name, 2))
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
        if (name, field.name) in ELSEWHERE:
            continue
        if field.name in needs and not needs[field.name].condition(component):
            continue
        changed = [
            result(replace(component, **{field.name: value})) for value in other_values(component, field.name)
        ]
        assert not all(torch.equal(model, before) for model in changed), field.name


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("fedwcm+longtail[alpha_rule=discrepancy]", {}, r"method\.alpha_rule = .* local without adaptive = true"),
        ("fedwcm+longtail[q=off]", {}, r"method\.q = 'off' .* ratio without adaptive = true"),
        ("fedwcm[average=samples]", {}, r"method\.average = 'samples' .* uniform without weighting = false"),
        (
            "fedavg[loss.name=class_weights]",
            {"loss.beta": 0.5},
            r"loss\.beta = 0\.5 .* without scheme = effective",
        ),
        (
            "fedavg[run.backend=vectorized]",
            {"run.workers": 2},
            r"run\.workers = 2 .* 0 without run\.backend = auto",
        ),
        ("fedavg", {"local.warmup": 1}, r"local\.warmup = 1 .* below run\.rounds = 1"),
        ("fedavg", {"aggregation.trim": 0.2}, r"trim = 0\.2 .* 0\.1 without aggregation\.rule = trimmed"),
        ("fedavg", {"aggregation.norm_lr": 0.5}, r"norm_lr = 0\.5 .* 0\.2 without aggregation\.quantile"),
        ("fedavg", {"data.crop_padding": 8}, r"data\.crop_padding = 8 .* 4 without data\.augment"),
        ("fedavg", {"privacy.key_holders": 3}, r"privacy\.key_holders = 3 .* 1 without privacy\.mode = he"),
        ("fedavg", {"privacy.min_contributors": 5}, r"min_contributors = 5 .* 3 without privacy\.mode = he"),
        ("fedavg", {"privacy.score_levels": 5}, r"privacy\.score_levels = 5 .* 8 without privacy\.mode = he"),
        ("fedavg", {"run.patience": 2}, r"run\.patience = 2 .* 0 without validation data.*--val-fraction"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(
    method: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        fedwcm.run(method, settings=settings, **RUN)
    with pytest.raises(ValueError, match=message):
        fedwcm.compare([method], [0], tmp_path, settings=settings, **RUN)


CLASSES = {"ok": 0.85, "warn": 0.12, "alarm": 0.03}


@pytest.fixture
def states(tmp_path: Path) -> dict[str, Any]:
    """A run on a table with the classes alarm, ok and warn, which is their order."""
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal() + 2 * i},{name}" for i, name in enumerate(CLASSES) for _ in range(20 * (4 - i))]
    (tmp_path / "states.csv").write_text("\n".join(["x,state", *rows]) + "\n")
    return {"dataset": tmp_path / "states.csv", "label": "state", "clients": 3, "participation": 1.0, "rounds": 2}


def test_a_target_by_class_names_is_the_list_in_the_order_of_the_classes(states: dict[str, Any]) -> None:
    def test_loss(target: Any) -> float | None:
        return fedwcm.run("fedwcm", settings={"run.target": target}, **states | {"rounds": 1}).summary.test_loss

    with pytest.warns(UserWarning, match=r"a list, stands for alarm=0\.03,ok=0\.85,warn=0\.12: give it by name"):
        listed = test_loss([0.03, 0.85, 0.12])
    for target in (CLASSES, "ok=0.85, warn=0.12,alarm=0.03", "alarm=0.03,ok=0.85,warn=0.12"):
        assert test_loss(target) == listed
    assert test_loss("none") != listed


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("ok=0.9,warn=0.1", "run.target = .* given for every class, so also for alarm"),
        ("ok=0.9,warn=0.1,alert=0", "unknown class in run.target: 'alert'. Did you mean 'alarm'"),
        ("ok=0.9,warn=0.2,alarm=-0.1", "run.target, class 'alarm', = -0.1 is not allowed"),
        ([-0.1, 0.9, 0.2], "run.target, class 'alarm', = -0.1 is not allowed"),
        ([0.5, 0.5], "it must be one share for each of alarm, ok, warn"),
        ("ok=0.9,warn=0.2,alarm=0.1", "run.target must sum to 1"),
        ("ok=much", "run.target = 'ok=much' is not allowed: it must be a list, each a number or NAME=VALUE"),
    ],
)
def test_an_error_in_a_target_names_the_class(target: Any, message: str, states: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        fedwcm.run("fedwcm", settings={"run.target": target}, **states)


def test_a_target_that_only_the_adjustment_follows_is_said_so(states: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="changes nothing in training with fedavg and cross_entropy"):
        fedwcm.run("fedavg", settings={"run.target": CLASSES}, **states)


def test_a_comparison_warns_of_two_labels_with_the_same_models(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"fedprox\[mu=0\.0\] and fedavg gave the same models, bit by bit"):
        fedwcm.compare(["fedprox[mu=0.0]", "fedavg", "fedwcm"], [0, 1], tmp_path, report=False, **RUN)


def test_a_run_says_what_still_rises_at_its_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rising = [round_record(i, test_accuracy=0.1, balanced_accuracy=i / 10) for i in range(1, 9)]
    flat = [round_record(i, test_accuracy=0.1, balanced_accuracy=0.8) for i in range(1, 9)]
    assert (still_rising(rising) or "").startswith(
        "the balanced accuracy still rises, by 0.20 over the last 2 of 8"
    )
    assert still_rising(flat) is None
    lagging = [replace(record, last_round_accuracy=0.2) for record in flat]
    assert "is still 0.10 behind the last model after 8 rounds" in (still_rising(lagging) or "")
    assert still_rising([replace(record, last_round_accuracy=0.11) for record in flat]) is None
    assert still_rising([]) is None
    options = ["--dataset", "digits", "--clients", "5", "--participation", "1", "--no-report", "--out"]
    main(["run", "--method", "fedwcm+longtail", "--rounds", "8", *options, str(tmp_path / "one")])
    main(["compare", "--methods", "fedwcm+longtail", "--rounds", "8", *options, str(tmp_path / "two")])
    assert "the balanced accuracy still rises" in (printed := capsys.readouterr().out)
    assert "fedwcm+longtail still rises clearly at the end: more rounds (--rounds) would give more" in printed


# --- options that reach their part from the configuration of a run ----------------------------------------------


def test_the_crop_padding_reaches_the_augmentation() -> None:
    config = from_settings({"data.augment": True, "data.crop_padding": 8})
    forward = SequentialForward(Network(nn.Linear(2, 2)))
    trainer = Components.of(config).trainer(config, forward, None)  # type: ignore[arg-type]
    assert trainer.augmentation == FlipCrop(8)
    assert FlipCrop(8).draw(np.random.default_rng(0), 50, 50)[..., 1:].max() == 16
    with pytest.raises(ValueError, match="crop_padding"):
        from_settings({"data.crop_padding": -1})


def test_several_clients_hold_keys_and_the_distribution_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tenseal")
    import fedwcm.experiment.class_distribution

    seen: list[int] = []
    plain = fedwcm.experiment.class_distribution.sum_counts  # type: ignore[attr-defined]

    def watched(*arguments: object, key_holders: int = 1, **options: object) -> object:
        seen.append(key_holders)
        return plain(*arguments, key_holders=key_holders, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fedwcm.experiment.class_distribution, "sum_counts", watched)
    method = "fedwcm[score=local, alpha_rule=local]"
    settings = {"privacy.key_holders": 2, "privacy.score_levels": 0}
    encrypted = fedwcm.run(method, privacy="he", settings=settings, **RUN)
    clear = fedwcm.run(method, **RUN)
    assert seen == [2]
    assert encrypted.history[-1].test_loss == clear.history[-1].test_loss
    cost = encrypted.summary.encryption
    assert cost is not None
    assert cost["clients"] == sum(1 for _ in fedwcm.partition(config=encrypted.config).counts)
    assert min(cost.values()) > 0
    assert clear.summary.encryption is None


@pytest.mark.parametrize("shape", [(3,), (5, 2)], ids=["table", "sequence"])
def test_only_images_are_augmented(shape: tuple[int, ...]) -> None:
    own = np.zeros((20, *shape), dtype=np.float32), np.tile(np.arange(2), 10)
    message = rf"data\.augment = True is not allowed: it must be false for inputs of shape {re.escape(str(shape))}"
    with pytest.raises(ValueError, match=message):
        fedwcm.run("fedavg", dataset=own, clients=2, augment=True, rounds=1)


@pytest.mark.parametrize("name", ["local.steps", "local.epochs", "local.batch_size", "data.n_max", "run.rounds"])
def test_an_absurd_number_is_refused_by_name_with_its_bound(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} = 10{{21}} is not allowed: .*(1,000,000,000|below 2\*\*63)"):
        fedwcm.run("fedavg", **{**RUN, "epochs": None, "rounds": None}, settings={name: 10**21})
    if name != "run.rounds":
        with pytest.raises(ValueError, match=rf"{name} = 10{{18}} is not allowed: .*at most 1,000,000,000"):
            from_settings({name: 10**18})


def test_the_same_options_are_accepted_where_they_have_an_effect() -> None:
    trimmed = {"aggregation.trim": 0.2, "aggregation.rule": "trimmed"}
    bound = {"aggregation.norm_lr": 0.5, "aggregation.quantile": 0.5, "aggregation.max_norm": 1.0}
    others = {"data.crop_padding": 2, "data.augment": True, "run.select_by": "accuracy", "data.val_fraction": 0.2}
    for settings in (trimmed, {**bound, **others}):
        fedwcm.run("fedavg", settings=settings, **RUN)


def test_a_test_fraction_is_refused_for_data_with_a_test_part() -> None:
    message = r"test_fraction = 0\.5 is not allowed: it must be left at 0\.2: digits has a test part of its own"
    with pytest.raises(ValueError, match=message):
        fedwcm.run("fedavg", test_fraction=0.5, **RUN)
    with pytest.raises(ValueError, match=message):
        fedwcm.partition(dataset=load_dataset("digits"), clients=4, test_fraction=0.5)
