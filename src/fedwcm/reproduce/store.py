"""The results folder: one small archive per finished run, found again by the fingerprint of its options.

An archive holds what `fedwcm report` reads of a run's folder: configuration, metrics, summary and split.
"""

import json
import re
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedwcm.config.schema import Settings
from fedwcm.reproduce.cells import Cell
from fedwcm.runs.files import replacing
from fedwcm.runs.folder import RunFolder
from fedwcm.runs.records import RoundRecord, Summary

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file in an archive, so that the same run gives the same bytes."""


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A finished run: its headline numbers and every evaluated round."""

    summary: Summary
    history: list[RoundRecord]


class ResultStore:
    """The archives below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root / "cells"
        self._paths = {path.stem.rpartition("-")[2]: path for path in sorted(self.root.rglob("*.zip"))}

    def find(self, cell: Cell) -> Path | None:
        """The archive of this run; None if there is none, or if a default that it relied on has changed since."""
        path = self._paths.get(cell.fingerprint)
        return path if path is not None and _current(_settings_in(path), cell.resolved()) else None

    def add(self, cell: Cell, folder: RunFolder) -> Path:
        """Store a finished run."""
        slug = re.sub(r"[^A-Za-z0-9.+-]+", "-", str(cell.settings["run.name"])).strip("-")
        path = self.root / cell.dataset / f"{slug}-seed{cell.seed}-{cell.fingerprint}.zip"
        files = (folder.config_file, folder.metrics_file, folder.summary_file, folder.split_file)
        with replacing(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.writestr(zipfile.ZipInfo(file.name, EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
        self._paths[cell.fingerprint] = path
        return path


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
    return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}


def _current(held: Settings, asked: Settings) -> bool:
    """Whether the run was what is asked for now: options it did not know of are new, with the old behaviour."""
    return all(
        key not in held or value == "auto" or _text(held[key]) == _text(value) for key, value in asked.items()
    )


def _text(value: object) -> str:
    return json.dumps(value, default=list)
