"""TensorBoard: event files in `OUT/tensorboard`, for `tensorboard --logdir`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedwcm.config.settings import RESULT_NEUTRAL, Settings
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.records import Summary
from fedwcm.experiment.trackers import TrackedRun, Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


GROUPS = {
    "accuracy": ("balanced_accuracy", "macro_f1", "many", "medium", "few", "last_round_few"),
    "momentum": ("alpha", "gain"),
    "clients": ("client_mean", "client_worst_decile", "client_std", "participants", "weights_entropy"),
    "costs": ("seconds", "bytes_down", "bytes_up"),
}
"""Groups of scalars, beside those that a name tells: `…_accuracy`, `…_loss`; what is in none is a diagnostic."""

HEADLINES = ("test_accuracy", "few", "test_loss")
"""The metrics beside the options in the tab of hyperparameters."""


def tag_of(key: str) -> str:
    """Return a scalar's name after the group in which TensorBoard shows it: `accuracy/few`."""
    if "/" in key:
        return key
    for suffix in ("accuracy", "loss"):
        if key.endswith(f"_{suffix}"):
            return f"{suffix}/{key}"
    return next((f"{group}/{key}" for group, keys in GROUPS.items() if key in keys), f"diagnostics/{key}")


class TensorBoard(Tracker):
    """Scalars in groups, the options as hyperparameters, options and summary as text, the confusion matrix."""

    name = "tensorboard"
    package = "tensorboard"

    _writer: "SummaryWriter | None" = None
    _folder = Path()
    _last = 0

    def start(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Rounds after the checkpoint that the run resumes from will be logged again: hide the old entries.
        purged = run.done + 1 if run.done else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purged)
        self._folder, self._last = run.folder, run.done
        if not run.done:
            self._text("config", run.settings)
            self._hyperparameters(run.settings)

    def log(self, number: int, scalars: Mapping[str, float]) -> None:
        assert self._writer is not None
        for key, value in scalars.items():
            self._writer.add_scalar(tag_of(key), value, number)
        self._writer.flush()
        self._last = number

    def finish(self, summary: Summary) -> None:
        from torch.utils.tensorboard.summary import hparams

        assert self._writer is not None
        self._text("summary", summary.to_json())
        if summary.diverged is None:
            self._write(hparams({}, {})[2])  # the event that a session has ended well
        if summary.confusion is not None:
            split = RunFolder(self._folder).partition()
            numbers = tuple(map(str, range(len(summary.confusion))))
            image = confusion_image(summary.confusion, numbers if split is None else split.classes)
            self._writer.add_image("confusion matrix", image, self._last, dataformats="HWC")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def view(self, folder: Path) -> str:
        return f"tensorboard --logdir {folder}"

    def _hyperparameters(self, settings: Settings) -> None:
        """Declare the options, and which scalars tell how well they did: shown as soon as these are logged."""
        from torch.utils.tensorboard.summary import hparams

        kept = {key: value for key, value in settings.items() if key not in RESULT_NEUTRAL}
        options = {key: v if isinstance(v, bool | int | float | str) else json.dumps(v) for key, v in kept.items()}
        experiment, start, _ = hparams(options, {tag_of(key): 0.0 for key in HEADLINES})
        self._write(experiment)
        self._write(start)

    def _write(self, event: object) -> None:
        """Write what the writer has no method for."""
        cast(Any, self._writer).file_writer.add_summary(event)

    def _text(self, tag: str, values: Mapping[str, object]) -> None:
        assert self._writer is not None
        lines = [f"    {key} = {json.dumps(value)}" for key, value in values.items()]
        self._writer.add_text(tag, "\n".join(lines), self._last)


SIDE = 480
"""Pixels of the matrix, or the next multiple of its classes."""

MOST_LABELLED = 25
"""Classes up to which rows and columns are named; up to half as many, cells have their numbers."""

LONGEST_NAME, LETTER = 14, 7
"""Letters of a class name that are shown, and pixels for each."""

DARK = (8, 69, 148)
"""The colour of a share of 1; of 0 it is white."""

FAINTEST = 0.15
"""Of the way to that colour, where the smallest share is: a single sample is no white cell."""

AXES = "rows: true class; columns: predicted class"


def confusion_image(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> NDArray[np.uint8]:
    """Return an image: rows are true classes, columns predicted ones; the darker, the larger the share."""
    counts = np.array(confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cell = max(1, -(-SIDE // len(counts)))
    shades = np.where(shares > 0, FAINTEST + (1 - FAINTEST) * shares, 0.0)
    colours = 255 - shades[..., np.newaxis] * (255 - np.array(DARK))
    matrix: NDArray[np.uint8] = colours.round().astype(np.uint8).repeat(cell, axis=0).repeat(cell, axis=1)
    if len(counts) > MOST_LABELLED:
        return matrix
    names = [name[:LONGEST_NAME] for name in classes]
    left = 10 + LETTER * max(map(len, names))
    image = Image.new("RGB", (left + len(matrix), 42 + len(matrix)), "white")
    image.paste(Image.fromarray(matrix), (left, 0))
    _label(image, shares, names, left, cell)
    return np.asarray(image)


def _label(image: Image.Image, shares: NDArray[np.float64], names: Sequence[str], left: int, cell: int) -> None:
    draw, font = ImageDraw.Draw(image), ImageFont.load_default()
    draw.text((left, image.height - 10), AXES, fill="black", font=font, anchor="lm")
    for i, name in enumerate(names):
        middle = cell * i + cell // 2
        draw.text((left - 6, middle), name, fill="black", font=font, anchor="rm")
        shown = name[: cell // LETTER] or name[:1]
        draw.text((left + middle, image.height - 30), shown, fill="black", font=font, anchor="mm")
        for j, share in enumerate(shares[i] if len(names) <= MOST_LABELLED // 2 else ()):
            if share:
                colour = "white" if share > 0.5 else "black"
                at = (left + cell * j + cell // 2, middle)
                draw.text(at, f"{share:.2f}", fill=colour, font=font, anchor="mm")
