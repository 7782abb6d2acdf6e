"""The chosen method, loss and sampler, the client trainer built from them, and options without an effect."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedwcm.balance import ABSENT
from fedwcm.config.options import convert, make, not_an_option
from fedwcm.config.recipes import RECIPES
from fedwcm.config.resolve import resolve_class
from fedwcm.config.schema import Component, Config
from fedwcm.core.batch import Sampler
from fedwcm.core.checks import Needs, require, unknown
from fedwcm.core.disclosure import Disclosure
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method, ServerTraining
from fedwcm.core.types import Clients, Context, Floats, Ints, Population
from fedwcm.data.inputs import FlipCrop
from fedwcm.engine.client import ClientTrainer
from fedwcm.engine.forward import Forward
from fedwcm.losses import LOSSES
from fedwcm.methods import METHODS
from fedwcm.models.base import CosineLinear
from fedwcm.samplers import SAMPLERS
from fedwcm.teacher import Taught, with_digest
from fedwcm.utils.field_types import field_types, undecorated_fields

T = TypeVar("T")

BLOCK = 1 << 16
"""Clients whose class counts are looked at at a time, so that a million of them need little memory."""


@dataclass(frozen=True)
class Components:
    """The components that a configuration names, with their options checked."""

    method: Method
    loss: Loss
    sampler: Sampler

    @classmethod
    def of(cls, config: Config) -> "Components":
        """Return the components of this configuration."""
        method = _choose("method", config.method, METHODS, Method)
        method.optimizers.check(method.name, config.local.optimizer, config.local.momentum)
        chosen = cls(
            method,
            _choose("loss", config.loss, LOSSES, Loss),
            _choose("sampler", config.sampler, SAMPLERS, Sampler),
        )
        chosen.refuse_full_gradient_of_another_loss()
        chosen.refuse_unfollowed_target(config.run.target)
        return chosen

    def resolve_options(self, config: Config) -> Config:
        """Return the configuration with all options of its components, including defaults."""
        return replace(
            config,
            method=replace(config.method, options=_record_options(self.method)),
            loss=replace(config.loss, options=_record_options(self.loss)),
            sampler=replace(config.sampler, options=options_of(self.sampler)),
        )

    @property
    def balanced_by(self) -> str | None:
        """What makes training account for the class distribution: the method, the loss, the sampler, or None."""
        if self.method.replaces_head:
            return f"method {self.method.name}"
        if self.loss.corrects_prior:
            return f"loss {self.loss.name}"
        return f"sampler {self.sampler.name}" if self.sampler.balances_classes else None

    def assumed_shares(self, counts: Ints, population: Population) -> Floats | None:
        """Return the class distribution that the probabilities of the trained model presuppose.

        It is a sum over the clients: n_k times the class shares of client k's batches times the factors of its
        loss, per class over the samples of all who have the class in their softmax. None if the loss has no such
        rule.

        Args:
            counts: samples of each class at each client, `(K, C)`.
            population: what all of them know.
        """
        if isinstance(self.method, ServerTraining):  # it depends on what the server makes of its own data
            return None
        if self.method.replaces_head:  # trained on as many features of each class
            return np.full(population.classes, 1.0 / population.classes)
        total, included, absent = (np.zeros(population.classes) for _ in range(3))
        for block in np.array_split(counts, math.ceil(len(counts) / BLOCK)):
            samples = block.sum(axis=1)
            clients = Clients(np.arange(len(block)), samples, block, population.local_steps(samples))
            x = torch.zeros(0, dtype=torch.float64)
            ctx = Context(0, population.rounds, x, {}, population, clients, np.ones(len(block)), {})
            factors = self.loss.class_factors(ctx)
            if factors is None:
                return None
            drawn = samples[:, None] * self.sampler.batch_shares(block)
            total += (drawn * factors).sum(axis=0)
            included += (samples[:, None] * (factors > 0)).sum(axis=0)
            absent = np.maximum(absent, ABSENT * factors.max(axis=0))  # if nobody has the class
        weights = np.where(total > 0, total, absent) / np.maximum(included, 1.0)
        shares: Floats = weights / weights.sum()
        return shares

    def assumed_shares_of_totals(self, population: Population) -> Floats | None:
        """Return the same where only the class distribution of all clients together is known.

        It is not enough for balanced batches, which depend on who has which classes.
        """
        if self.sampler.balances_classes and not self.method.replaces_head:
            return None
        totals = np.rint(population.prior * population.clients * population.mean_samples).astype(np.int64)
        return self.assumed_shares(totals[None], population)

    def refuse_full_gradient_of_another_loss(self) -> None:
        """Refuse a method whose full gradients would not be those that its mini-batches estimate."""
        if not self.method.uses_full_gradient:
            return
        reason = "the mean over all samples, each counted once, with which it corrects every step"
        if self.sampler.balances_classes:
            text = f"sampler.name = {self.sampler.name!r} is not allowed with the method {self.method.name}"
            raise ValueError(f"{text}: its batches would not estimate {reason}; use uniform")
        if not self.loss.averages_samples:
            text = f"loss.name = {self.loss.name!r} is not allowed with the method {self.method.name}"
            raise ValueError(f"{text}: the loss of a batch does not estimate {reason}")

    def refuse_unfollowed_target(self, target: Sequence[float] | Mapping[str, float] | None) -> None:
        """Refuse a target distribution if the model is trained for equally frequent classes in spite of it."""
        by = self.balanced_by
        if self.loss.corrects_prior and self.loss.follows_target and not self.method.replaces_head:
            by = f"sampler {self.sampler.name}" if self.sampler.balances_classes else None
        shares = list(target.values()) if isinstance(target, Mapping) else target and list(target)
        if by is None or shares is None or np.allclose(shares, np.mean(shares)):
            return
        raise ValueError(
            f"run.target = {target if isinstance(target, Mapping) else shares} is not allowed with the {by}, "
            "which trains for equally frequent classes whatever the target: leave it out, or use the loss "
            "prior_ce, which follows it, with the sampler uniform (of a recipe: NAME[sampler.name=uniform])"
        )

    def refuse_head(self, head: nn.Module | None) -> None:
        """Refuse a final layer that the method or the loss does not go with."""
        if isinstance(head, CosineLinear) and self.loss.logit_scale.normalize:
            raise ValueError(
                f"loss.normalize = True of the loss {self.loss.name} is not allowed with model.head = 'cosine', "
                "whose logits are normalised already: it must be False"
            )
        if self.method.replaces_head and head is not None and type(head) is not nn.Linear:
            raise ValueError(
                f"model.head is a {type(head).__name__}, which is not allowed with the method {self.method.name}: "
                "it trains a linear layer to take the head's place, so model.head must be linear (nn.Linear)"
            )

    def trainer(
        self,
        config: Config,
        forward: Forward,
        population: Population,
        noisy_counts: Mapping[int, Ints] | None = None,
    ) -> ClientTrainer:
        """Return the trainer of a run's clients; `noisy_counts` are those that clients claim to have."""
        self.refuse_head(forward.network.head)
        self.method.check_model(forward.network.layout)
        return ClientTrainer(
            method=self.method,
            loss=self.loss,
            sampler=self.sampler,
            augmentation=FlipCrop(config.data.crop_padding) if config.data.augment else None,
            forward=forward,
            population=population,
            optimizer=config.local,
            seed=config.run.seed,
            disclosure=Disclosure(config.privacy.levels, noisy_counts),
        )


def _record_options(part: Method | Loss) -> dict[str, object]:
    """Return the options of a component; a file that it reads with a digest, since what it holds may change."""
    options = options_of(part)
    if isinstance(part, Taught) and part.uses_teacher:
        options["teacher"] = with_digest(part.teacher)
    return options


def _require_options(kind: str, cls: type) -> None:
    lost = undecorated_fields(cls)
    if lost is not None:
        raise ValueError(f"the {kind} {lost}")


def _choose(kind: str, chosen: Component, known: Mapping[str, type[T]], base: Any) -> T:
    """Return the component that was named, or given as a class or an instance, with the options applied."""
    value = chosen.value
    if value is not None and not isinstance(value, type):
        _require_options(kind, type(value))
        instance: T = with_options(value, chosen.options, kind)
        return instance
    if kind == "method" and value is None and ":" not in chosen.name and chosen.name not in known:
        raise unknown("method or recipe", chosen.name, {*known, *RECIPES})
    cls = value or resolve_class(kind, chosen, known, base)
    _require_options(kind, cls)
    component: T = make(cls, chosen.options, kind)
    return component


def options_of(instance: object) -> dict[str, object]:
    """Return the fields of a dataclass in TOML types, or as descriptions where TOML has no type; else nothing."""
    if not is_dataclass(instance):
        return {}
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    return {key: _plain(value) for key, value in values.items() if value is not None}


def _plain(value: object) -> object:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, Tensor)):
        array = np.ascontiguousarray(value)
        digest = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
        return f"{array.dtype} of shape {array.shape}#{digest}"
    return repr(value)


def with_options(instance: T, options: Mapping[str, object], where: str) -> T:
    """Return the object with the given options applied."""
    own = options_of(instance)
    changed = {key: value for key, value in options.items() if own.get(key) != value}
    if not changed:
        return instance
    kinds = field_types(type(instance)) if is_dataclass(instance) else {}
    for key in changed:
        if key not in own and key not in kinds:
            raise not_an_option(where, key, own, instance)
    checked = {key: convert(value, kinds[key], f"{where}.{key}") for key, value in changed.items()}
    return replace(instance, **checked)  # type: ignore[type-var]


HE = Needs(lambda config: config.privacy.mode == "he", "privacy.mode = he")

SECTION_NEEDS = {
    "aggregation.trim": Needs(lambda config: config.aggregation.rule == "trimmed", "aggregation.rule = trimmed"),
    "aggregation.norm_lr": Needs(lambda config: config.aggregation.quantile is not None, "aggregation.quantile"),
    "data.crop_padding": Needs(lambda config: config.data.augment, "data.augment"),
    "data.server_before_tail": Needs(lambda config: config.data.server_fraction > 0, "data.server_fraction"),
    "data.val_draw": Needs(
        lambda config: config.data.draws_validation, "data.val_fraction, or data.val_clients as a share"
    ),
    "privacy.key_holders": HE,
    "privacy.min_contributors": HE,
    "privacy.score_levels": HE,
    "run.workers": Needs(
        lambda config: config.run.backend not in ("sequential", "vectorized") or config.run.workers == 1,
        "run.backend = auto, parallel or ray: the others train in one process",
    ),
}
"""When options of the sections have an effect; methods and losses declare theirs (`needs`)."""


def reject_unused_options(config: Config, components: Components) -> None:
    """Refuse an option that differs from its default and that another option turns off."""
    rounds, warmup = config.run.rounds, config.local.warmup
    allowed = f"below run.rounds = {rounds}: the learning rate would never reach local.lr"
    require(not warmup or warmup < rounds, "local.warmup", warmup, allowed)
    for option, (value, default, needs) in unused_options(config, components).items():
        require(False, option, value, f"{_text(default)} without {needs}")


def unused_options(config: Config, components: Components) -> dict[str, tuple[object, object, str]]:
    """Return the options without an effect that differ from their defaults: value, default, and what they need."""
    unused = {}
    for option, needs in SECTION_NEEDS.items():
        section, _, name = option.partition(".")
        value, default = _with_default(getattr(config, section), name)
        if value != default and not needs.condition(config):
            unused[option] = value, default, needs.words
    for kind in ("method", "loss", "sampler"):
        component = getattr(components, kind)
        for name, needs in component_needs(type(component)).items():
            value, default = _with_default(component, name)
            if value != default and not needs.condition(component):
                unused[f"{kind}.{name}"] = value, default, needs.words
    return unused


def component_needs(cls: type) -> Mapping[str, Needs]:
    """Return what the options of a component need to have an effect, as it and its bases declare."""
    declared: Iterator[Mapping[str, Needs]] = (vars(base).get("needs", {}) for base in reversed(cls.__mro__))
    return {name: needs for each in declared for name, needs in each.items() if is_dataclass(cls)}


def require_default(section: str, options: object, option: str, because: str) -> None:
    """Raise unless an option of a section has its default; `because` says when it must, after that default."""
    value, default = _with_default(options, option)
    require(value == default, f"{section}.{option}", value, f"{_text(default)} {because}")


def _with_default(options: object, name: str) -> tuple[object, object]:
    default = next(field.default for field in fields(options) if field.name == name)  # type: ignore[arg-type]
    return getattr(options, name), default


def _text(default: object) -> str:
    return "none" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
