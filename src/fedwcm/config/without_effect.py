"""Options that would have no effect are refused: whoever sets one expects it to change the run."""

from dataclasses import fields

from fedwcm.config.schema import Config
from fedwcm.core.checks import require


def refuse_without_effect(config: Config) -> None:
    """Refuse an option that differs from its default and that another option turns off."""
    aggregation, privacy, data = config.aggregation, config.privacy, config.data
    if aggregation.rule != "trimmed":
        require_default("aggregation", aggregation, "trim", "without aggregation.rule = trimmed")
    if aggregation.quantile is None:
        require_default("aggregation", aggregation, "norm_lr", "without aggregation.quantile")
    if not data.augment:
        require_default("data", data, "crop_padding", "without data.augment")
    for option in ("key_holders", "min_contributors", "score_levels") if privacy.mode != "he" else ():
        require_default("privacy", privacy, option, "without privacy.mode = he")


def refuse_selection(config: Config, validates: bool) -> None:
    """Refuse options about validation data in a run that has none."""
    for option in ("patience", "select_by") if not validates else ():
        require_default("run", config.run, option, "without validation data: hold some out with --val-fraction")


def require_default(section: str, options: object, option: str, because: str) -> None:
    """Raise unless an option of a section has its default; `because` says when it must, after that default."""
    default = next(field.default for field in fields(options) if field.name == option)  # type: ignore[arg-type]
    value, allowed = getattr(options, option), "none" if default is None else default
    require(value == default, f"{section}.{option}", value, f"{allowed} {because}")
