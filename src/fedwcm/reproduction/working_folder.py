"""The working folder: runs in progress, and finished ones that are kept so that longer ones go on from them."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedwcm.config.settings import from_settings
from fedwcm.experiment.components import Components
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.start import extension_problem, has_finished
from fedwcm.reproduction.cells import Cell
from fedwcm.reproduction.store import ResultStore


@dataclass(frozen=True)
class WorkingFolder:
    """Folders of runs, named by their options and rounds.

    Args:
        root: where they are.
        keep: whether a finished run stays when its metrics are stored.
    """

    root: Path
    keep: bool = False

    def start(self, cell: Cell) -> RunFolder:
        """Return a run's folder: a new one, its own if it was interrupted, or a shorter run's, which goes on."""
        folder = self._folder(cell, cell.rounds)
        shorter = None if folder.path.exists() else self._shorter(cell)
        if shorter is not None:
            shorter.path.rename(folder.path)
        return folder

    def store_finished(self, cells: Iterable[Cell], store: ResultStore) -> None:
        """Store the runs that have finished."""
        for cell in cells:
            folder = self._folder(cell, cell.rounds)
            finished = has_finished(folder, from_settings(cell.settings).run)
            if finished and store.find(cell) is None:
                store.add(cell, folder)
            if finished and not self.keep:
                with suppress(OSError):
                    shutil.rmtree(folder.path)

    def _folder(self, cell: Cell, rounds: int) -> RunFolder:
        return RunFolder(self.root / f"{cell.lineage}-{rounds}")

    def _shorter(self, cell: Cell) -> RunFolder | None:
        """Return the longest finished run with the same options and fewer rounds that this one can extend."""
        config = from_settings(cell.settings)
        chosen = Components.of(config)
        known = (int(path.name.rpartition("-")[2]) for path in self.root.glob(f"{cell.lineage}-*"))
        for rounds in sorted((n for n in known if n < cell.rounds), reverse=True):
            folder = self._folder(cell, rounds)
            if folder.finished and extension_problem(config, chosen.method, chosen.loss, rounds) is None:
                return folder
        return None
