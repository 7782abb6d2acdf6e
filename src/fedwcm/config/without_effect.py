"""Options that would have no effect are refused: whoever sets one expects it to change the run."""

from dataclasses import fields

from fedwcm.config.schema import Config
from fedwcm.core.checks import require


def refuse_without_effect(config: Config) -> None:
    """Refuse an option that differs from its default and that another option turns off."""
    aggregation, privacy, data = config.aggregation, config.privacy, config.data
    _require_default(
        "aggregation", aggregation, "trim", aggregation.rule == "trimmed", "aggregation.rule = trimmed"
    )
    _require_default(
        "aggregation", aggregation, "norm_lr", aggregation.quantile is not None, "aggregation.quantile"
    )
    _require_default("data", data, "crop_padding", data.augment, "data.augment")
    for option in ("key_holders", "min_contributors", "score_levels"):
        _require_default("privacy", privacy, option, privacy.mode == "he", "privacy.mode = he")


def refuse_selection(config: Config, validates: bool) -> None:
    """Refuse options about validation data in a run that has none."""
    for option in ("patience", "select_by"):
        _require_default(
            "run", config.run, option, validates, "validation data: hold some out with --val-fraction"
        )


def _require_default(section: str, options: object, option: str, has_effect: bool, needed: str) -> None:
    default = next(field.default for field in fields(options) if field.name == option)  # type: ignore[arg-type]
    value = getattr(options, option)
    require(has_effect or value == default, f"{section}.{option}", value, f"{default} without {needed}")
