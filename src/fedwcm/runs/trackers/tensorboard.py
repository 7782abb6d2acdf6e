"""TensorBoard: event files in `OUT/tensorboard`, for `tensorboard --logdir`."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedwcm.runs.records import Summary
from fedwcm.runs.trackers.protocol import TrackedRun, Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Tracker):
    """Scalars per round; the options and the summary as text."""

    name = "tensorboard"
    package = "tensorboard"

    _writer: "SummaryWriter | None" = None
    _last = 0

    def start(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Rounds after the checkpoint that the run resumes from will be logged again: hide the old entries.
        purged = run.done + 1 if run.done else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purged)
        self._last = run.done
        if not run.done:
            self._text("config", run.settings)

    def log(self, number: int, scalars: Mapping[str, float]) -> None:
        assert self._writer is not None
        for key, value in scalars.items():
            self._writer.add_scalar(key, value, number)
        self._writer.flush()
        self._last = number

    def finish(self, summary: Summary) -> None:
        self._text("summary", summary.to_json())

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _text(self, tag: str, values: Mapping[str, object]) -> None:
        assert self._writer is not None
        lines = [f"    {key} = {json.dumps(value)}" for key, value in values.items()]
        self._writer.add_text(tag, "\n".join(lines), self._last)
