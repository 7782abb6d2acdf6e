"""Weights & Biases: offline in `OUT/wandb`, for `wandb sync`; online with WANDB_MODE=online."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, cast
from uuid import uuid4

from fedwcm.experiment.records import Summary
from fedwcm.experiment.trackers import TrackedRun, Tracker, read_or_make, scalars_of

if TYPE_CHECKING:
    from wandb import Run

Mode = Literal["online", "offline", "disabled", "shared"]


class WeightsAndBiases(Tracker):
    """Options as the config, scalars over the rounds, the summary as the summary."""

    name = "wandb"
    package = "wandb"

    _run: "Run | None" = None
    _exit_code = 1

    def start(self, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline means that nothing is sent
        import wandb

        identity, _ = read_or_make(run.folder / "wandb" / "run-id", lambda: uuid4().hex[:8])
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedwcm"),
            name=run.name,
            id=identity,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
            mode=cast(Mode, os.environ.get("WANDB_MODE", "offline")),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # A resumed run repeats some rounds, which W&B's own step, as it only grows, would not allow.
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def log(self, number: int, scalars: Mapping[str, float]) -> None:
        assert self._run is not None
        self._run.log({"round": number, **scalars})

    def finish(self, summary: Summary) -> None:
        assert self._run is not None
        values = summary.to_json()
        texts = {key: value for key, value in values.items() if isinstance(value, str)}
        self._run.summary.update({**scalars_of(values), **texts})
        self._exit_code = 1 if summary.diverged else 0

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)
