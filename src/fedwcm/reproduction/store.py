"""The results folder: one small archive per finished run, found again by its options, given or default.

An archive holds what `fedwcm report` reads of a run's folder: configuration, metrics, summary, split, environment.
"""

import json
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedwcm.config.settings import Settings, decisive
from fedwcm.data.named import DATASETS
from fedwcm.experiment.files import replacing
from fedwcm.experiment.folder import RunFolder, slug
from fedwcm.experiment.partitioning import NAMED_IMBALANCE
from fedwcm.experiment.records import RoundRecord, Summary
from fedwcm.models import default_model
from fedwcm.reproduction.presets import Cell

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file in an archive: when the run was made is in its environment."""
INDEXED = ("data.dataset", "method.name", "run.rounds", "run.seed")
"""Options that every cell gives, by which archives are looked up; only where there are some, all are compared."""
Key = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A finished run: its headline numbers and every evaluated round."""

    summary: Summary
    history: list[RoundRecord]

    @property
    def last_mean_accuracy(self) -> float | None:
        """The mean accuracy of the last ten evaluations; None if the run diverged, or was never tested."""
        return None if self.summary.diverged else self.summary.last_mean_accuracy


class ResultStore:
    """The archives below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root / "cells"
        self._settings: dict[Key, dict[Path, Settings]] = {}
        for path in sorted(self.root.rglob("*.zip")):
            self._keep(path)

    def find(self, cell: Cell) -> Path | None:
        """Return the archive of a run with the same options, whichever of them were defaults then or are now.

        On data that may change only the run of the same fingerprint counts, which the data is part of.
        """
        alike = self._settings.get(_key(cell.settings))
        if not alike:
            return None
        requested, own = _without_auto(cell.resolve()), _file_name(cell)
        for path, settings in alike.items():
            if path.name == own or (not cell.data_digest and _same(settings, requested, cell.settings)):
                return path
        return None

    def runs(self, cells: Iterable[Cell]) -> Iterator[tuple[Cell, StoredRun]]:
        """Yield the cells that were run, each with its run."""
        for cell in cells:
            path = self.find(cell)
            if path is not None:
                yield cell, read_run(path)

    def run_times(self) -> Iterator[tuple[Settings, float]]:
        """Yield the options of every stored run with the seconds that it took."""
        for alike in self._settings.values():
            for path, settings in alike.items():
                with zipfile.ZipFile(path) as archive:
                    summary = json.loads(archive.read("summary.json"))
                yield settings, summary["seconds_per_round"] * summary["rounds"]

    def add(self, cell: Cell, folder: RunFolder) -> Path:
        """Store a finished run."""
        path = self.root / Path(cell.dataset).name / _file_name(cell)
        results = (folder.config_file, folder.metrics_file, folder.summary_file, folder.partition_file)
        made_by = [file for file in (folder.environment_file,) if file.exists()]
        with replacing(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in (*results, *made_by):
                archive.writestr(zipfile.ZipInfo(file.name, EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
        self._keep(path)
        return path

    def _keep(self, path: Path) -> None:
        settings = _settings_in(path)
        self._settings.setdefault(_key(settings), {})[path] = settings


def read_run(path: Path) -> StoredRun:
    """Return the run in an archive."""
    with unpack([path]) as (folder,):
        return StoredRun(RunFolder(folder).summary(), RunFolder(folder).metrics())


@contextmanager
def unpack(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """Yield the archives as folders of runs, which are gone afterwards."""
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
    return decisive(options)


def _file_name(cell: Cell) -> str:
    return f"{slug(str(cell.settings['run.name']))}-seed{cell.seed}-{cell.fingerprint}.zip"


def _without_auto(settings: Settings) -> Settings:
    """Return the options with what a run makes of `auto`; without a named data set only the data can tell."""
    entry = DATASETS.get(str(settings["data.dataset"]))
    if entry is None:
        return settings
    defaults = {"data.imbalance": NAMED_IMBALANCE, "partition.name": "equal"}
    defaults["model.name"] = default_model(entry.input_shape)
    return {key: defaults.get(key, value) if value == "auto" else value for key, value in settings.items()}


def _key(settings: Settings) -> Key:
    return tuple(_text(settings.get(option)) for option in INDEXED)


def _same(stored: Settings, requested: Settings, explicit: Settings) -> bool:
    """Return whether the run was what is asked for now."""

    def agrees(key: str, value: object) -> bool:
        if key not in stored:  # it was none, or is new: then only today's default is the old behaviour
            return key not in explicit
        return _text(stored[key]) == _text(value)

    return stored.keys() <= requested.keys() and all(agrees(key, value) for key, value in requested.items())


def _text(value: object) -> str:
    return json.dumps(value, default=list)
