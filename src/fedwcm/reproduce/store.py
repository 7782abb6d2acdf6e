"""The results folder: one small archive per finished run, found again by its options, given or default.

An archive holds what `fedwcm report` reads of a run's folder: configuration, metrics, summary and split.
"""

import json
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedwcm.config.schema import INCIDENTAL, Settings
from fedwcm.reproduce.cells import Cell
from fedwcm.runs.files import replacing
from fedwcm.runs.folder import RunFolder, slug
from fedwcm.runs.records import RoundRecord, Summary

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file in an archive, so that the same run gives the same bytes."""
INDEXED = ("data.dataset", "method.name", "run.rounds", "run.seed")
"""Options that every cell gives, by which archives are looked up; only where there are some, all are compared."""
RESOLVED = ("data.imbalance", "partition.name", "model.name")
"""Options of which a run keeps what the data made of `auto`."""
Key = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A finished run: its headline numbers and every evaluated round."""

    summary: Summary
    history: list[RoundRecord]


class ResultStore:
    """The archives below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root / "cells"
        self._held: dict[Key, dict[Path, Settings]] = {}
        for path in sorted(self.root.rglob("*.zip")):
            self._keep(path)

    def find(self, cell: Cell) -> Path | None:
        """The archive of a run with the same options, whichever of them were defaults then or are now."""
        alike = self._held.get(_key(cell.settings))
        if not alike:
            return None
        asked = cell.resolved()
        return next((path for path, held in alike.items() if _same(held, asked, cell.settings)), None)

    def runs(self, cells: Iterable[Cell]) -> Iterator[tuple[Cell, StoredRun]]:
        """The cells that were run, each with its run."""
        for cell in cells:
            path = self.find(cell)
            if path is not None:
                yield cell, read_run(path)

    def add(self, cell: Cell, folder: RunFolder) -> Path:
        """Store a finished run."""
        name = slug(str(cell.settings["run.name"]))
        path = self.root / cell.dataset / f"{name}-seed{cell.seed}-{cell.fingerprint}.zip"
        files = (folder.config_file, folder.metrics_file, folder.summary_file, folder.split_file)
        with replacing(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.writestr(zipfile.ZipInfo(file.name, EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
        self._keep(path)
        return path

    def _keep(self, path: Path) -> None:
        held = _settings_in(path)
        self._held.setdefault(_key(held), {})[path] = held


def read_run(path: Path) -> StoredRun:
    """The run in an archive."""
    with unpacked([path]) as (folder,):
        return StoredRun(RunFolder(folder).summary(), RunFolder(folder).metrics())


@contextmanager
def unpacked(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """The archives as folders of runs, which are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fedwcm-results-") as name:
        folders = []
        for path in paths:
            folders.append(Path(name) / path.stem)
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folders[-1])
        yield folders


def _settings_in(path: Path) -> Settings:
    with zipfile.ZipFile(path) as archive:
        sections = tomllib.loads(archive.read("config.toml").decode())
    options = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    return {key: value for key, value in options.items() if key not in INCIDENTAL}


def _key(settings: Settings) -> Key:
    return tuple(_text(settings.get(option)) for option in INDEXED)


def _same(held: Settings, asked: Settings, given: Settings) -> bool:
    """Whether the run was what is asked for now."""

    def agrees(key: str, value: object) -> bool:
        if key not in held:  # it was none, or is new: then only today's default is the old behaviour
            return key not in given
        return (key in RESOLVED and value == "auto") or _text(held[key]) == _text(value)

    return held.keys() <= asked.keys() and all(agrees(key, value) for key, value in asked.items())


def _text(value: object) -> str:
    return json.dumps(value, default=list)
