"""The public functions. Each command of the command line is one of them."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedwcm.config import Config, Settings, differences, from_settings, method_settings, overlay, read_toml
from fedwcm.experiment import build
from fedwcm.models import build_model
from fedwcm.sim.folder import Record, RunFolder
from fedwcm.sim.progress import Progress, Silent
from fedwcm.sim.runner import Runner

FLAGS: dict[str, str] = {
    "dataset": "data.dataset",
}


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: what was run, how it went, and the trained model."""

    config: Config
    history: list[Record]
    summary: Record
    model: nn.Module
    folder: Path | None
