"""The privacy that a node demands before it reveals anything: the run's own options come from the server."""

from collections.abc import Mapping
from typing import Any

from fedwcm.core.checks import require
from fedwcm.privacy.options import PrivacyOptions
from fedwcm.utils.json_record import is_number


def require_private_enough(run: PrivacyOptions, node_config: Mapping[str, Any]) -> None:
    """Raise ValueError if the run protects this node's counts less than the node's config demands."""
    mode, least, levels = (node_config.get(key) for key in ("privacy", "min-contributors", "score-levels"))
    require(mode in (None, "none", "he"), "privacy", mode, "'none' or 'he'")
    if mode == "he":
        _demand(run.mode == "he", "privacy = 'he'", "mode", run.mode)
    if least is not None:
        require(_whole(least) and least >= 2, "min-contributors", least, "a whole number from 2")
        enough = run.mode == "he" and run.min_contributors >= least
        _demand(enough, f"min-contributors = {least}", "min_contributors", run.min_contributors, run.mode)
    if levels is not None:
        require(_whole(levels) and levels >= 1, "score-levels", levels, "a whole number from 1")
        few = run.levels is not None and run.levels <= levels
        _demand(few, f"score-levels = {levels}", "score_levels", run.score_levels, run.mode)
    _require_noise(run.epsilon, node_config.get("epsilon"))


def _require_noise(run: float | None, largest: Any) -> None:
    if largest is None:
        return
    require(is_number(largest) and largest > 0, "epsilon", largest, "a positive number")
    _demand(run is not None and run <= largest, f"epsilon = {largest}", "epsilon", run)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _demand(met: bool, demand: str, option: str, value: object, mode: str | None = None) -> None:
    if not met:
        where = "" if mode is None else f" and privacy.mode = {mode!r}"
        raise ValueError(f"this node demands {demand}: the run has privacy.{option} = {value!r}{where}")
