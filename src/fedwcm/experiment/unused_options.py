"""Options that would have no effect are refused: whoever sets one expects it to change the run."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from fedwcm.config.schema import Config
from fedwcm.core.checks import Needs, require
from fedwcm.experiment.components import Components

HE = Needs(lambda config: config.privacy.mode == "he", "privacy.mode = he")

SECTION_NEEDS = {
    "aggregation.trim": Needs(lambda config: config.aggregation.rule == "trimmed", "aggregation.rule = trimmed"),
    "aggregation.norm_lr": Needs(lambda config: config.aggregation.quantile is not None, "aggregation.quantile"),
    "data.crop_padding": Needs(lambda config: config.data.augment, "data.augment"),
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


def refuse_patience(config: Config, validates: bool) -> None:
    """Refuse patience in a run without validation data."""
    if not validates:
        because = "without validation data: hold some out with --val-fraction"
        require_default("run", config.run, "patience", because)


def require_default(section: str, options: object, option: str, because: str) -> None:
    """Raise unless an option of a section has its default; `because` says when it must, after that default."""
    value, default = _with_default(options, option)
    require(value == default, f"{section}.{option}", value, f"{_text(default)} {because}")


def _with_default(options: object, name: str) -> tuple[object, object]:
    default = next(field.default for field in fields(options) if field.name == name)  # type: ignore[arg-type]
    return getattr(options, name), default


def _text(default: object) -> str:
    return "none" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
