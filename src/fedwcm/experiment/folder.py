"""Folders of runs and comparisons: their files, strict and tolerant reading, finding runs. No torch here."""

import json
import os
import re
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fedwcm.config.schema import COMPONENTS, Config
from fedwcm.config.settings import Settings, from_settings, read_toml, with_present_names, write_toml
from fedwcm.core.checks import shorten
from fedwcm.experiment.files import parse_json, read_json, replace_file, replacing, write_json, writing
from fedwcm.experiment.records import (
    ComparisonIndex,
    EnvironmentRecord,
    PartitionRecord,
    PersonalizationRecord,
    RoundRecord,
    Summary,
)
from fedwcm.utils.json_record import JsonRecord, RecordError

Record = TypeVar("Record", bound=JsonRecord)

REPORT = "report.html"
"""The page about a run or a comparison, in its folder."""

OLD_PARTITION = "split.json"
"""The name of `partition.json` in folders of version 0.1."""

SEARCH_FILE = "trials.journal"
"""The trials of a search."""


def slug(label: str) -> str:
    """Return a label as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", label).strip("-")


class RunFolder:
    """The files of a run. Whatever cannot be read is an error that names the file, the line and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.summary_file = path / "summary.json"
        self.partition_file = path / "partition.json"
        self.environment_file = path / "environment.json"
        self.model_file = path / "model.safetensors"
        self.last_model_file = path / "model-last.safetensors"
        self.personalized_file = path / "personalized.json"
        self.federation_file = path / "federation.json"
        self.report_file = path / REPORT
        self.checkpoints = path / "checkpoints"

    @property
    def holds_run(self) -> bool:
        return self.config_file.exists() and not self.holds_search

    @property
    def holds_search(self) -> bool:
        """Whether `fedwcm tune` has written the folder, which then has a `config.toml` and no run."""
        return (self.path / SEARCH_FILE).exists()

    def refuse_search(self) -> None:
        """Raise if this is the folder of a search, in place of that of a run."""
        if self.holds_search:
            raise FileNotFoundError(
                f"{self.path} holds a search: its tuning.md says what was found, "
                "and repeating the call of tune resumes it"
            )

    @property
    def finished(self) -> bool:
        return self.summary_file.exists()

    def settings(self) -> Settings:
        """Return the dotted options as they were written, whichever version wrote them."""
        return with_present_names(read_toml(self.config_file))

    def config(self, *, trust: bool = False) -> Config:
        """Return the configuration; the code that it names is not imported unless the folder is trusted."""
        config = from_settings(self.settings())
        parts = {} if trust else {name: replace(getattr(config, name), trusted=False) for name in COMPONENTS}
        return replace(config, **parts)

    def write_config(self, config: Config) -> None:
        with replacing(self.config_file) as draft:
            write_toml(config, draft)

    def metrics(self, summary: Summary | None = None) -> list[RoundRecord]:
        """Return the evaluated rounds so far, without a last line that a crash cut short.

        Given the summary of a finished run, warn if rounds are missing at the end.
        """
        if not self.metrics_file.exists():
            return []
        *whole, _cut_short = self.metrics_file.read_text(encoding="utf-8").split("\n")
        records = [read_round(line, f"{self.metrics_file}, line {n}") for n, line in enumerate(whole, 1)]
        last = records[-1].round if records else 0
        if summary is not None and last < summary.rounds:
            text = f"{self.metrics_file} ends with round {last}, but the run was evaluated up to {summary.rounds}"
            warnings.warn(f"{text}: the file was cut, and curves and rounds are missing", stacklevel=3)
        return records

    @property
    def has_metrics(self) -> bool:
        """Whether a round was evaluated."""
        return self.metrics_file.exists() and self.metrics_file.stat().st_size > 0

    def write_metrics(self, records: Iterable[RoundRecord]) -> None:
        """Replace the metrics."""
        replace_file(self.metrics_file, "".join(map(metrics_line, records)))

    def append_metrics(self, record: RoundRecord) -> None:
        with writing(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(metrics_line(record))

    def partition(self) -> PartitionRecord | None:
        """Return who holds how many samples of which class; None if the run did not know."""
        for file in (self.partition_file, self.path / OLD_PARTITION):
            if file.exists():
                return _read(PartitionRecord, file)
        return None

    def write_partition(self, partition: PartitionRecord) -> None:
        write_json(self.partition_file, partition.to_json(), indent=None)

    def environments(self) -> list[EnvironmentRecord]:
        """Return what worked on the run, first to last; empty where that was not recorded."""
        content = read_json(self.environment_file) if self.environment_file.exists() else []
        entries = content if isinstance(content, list) else [content]
        return [EnvironmentRecord.from_json(entry, str(self.environment_file)) for entry in entries]

    def write_environments(self, records: Iterable[EnvironmentRecord]) -> None:
        write_json(self.environment_file, [record.to_json() for record in records])

    def personalization(self) -> PersonalizationRecord | None:
        """Return the clients before and after they have fine-tuned the model; None if they have not."""
        exists = self.personalized_file.exists()
        return _read(PersonalizationRecord, self.personalized_file) if exists else None

    def write_personalized(self, record: PersonalizationRecord) -> None:
        write_json(self.personalized_file, record.to_json())

    def summary(self) -> Summary:
        try:
            return _read(Summary, self.summary_file)
        except (FileNotFoundError, RecordError) as error:
            what = str(error) if self.finished else f"{self.summary_file} is missing"
            raise RecordError(f"{what}; the run writes it again when it is resumed (--resume)") from error

    def readable_summary(self) -> Summary | None:
        """Return the summary of a run that is to be resumed; None, with a warning, if it is damaged."""
        try:
            return _read(Summary, self.summary_file) if self.finished else None
        except RecordError as error:
            warnings.warn(f"{error}: it is made again from the last checkpoint", stacklevel=3)
            return None

    def discard_results(self) -> None:
        """Remove what was computed from the final model: the run goes on, to another one."""
        for file in (self.summary_file, self.personalized_file):
            file.unlink(missing_ok=True)

    def write_summary(self, summary: Summary) -> None:
        write_json(self.summary_file, summary.to_json(), allow_nan=False)


def _read(kind: type[Record], file: Path) -> Record:
    return kind.from_json(read_json(file), str(file))


def read_round(line: str | bytes, where: str) -> RoundRecord:
    """Return the record on a line of `metrics.jsonl`."""
    return RoundRecord.from_json(parse_json(line, where), where)


def metrics_line(record: RoundRecord) -> str:
    """Return the line of a record in `metrics.jsonl`."""
    return json.dumps(record.to_json(), allow_nan=False) + "\n"


class ComparisonFolder:
    """The files of a comparison."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index_file = path / "comparison.json"
        self.table_file = path / "table.csv"
        self.latex_file = path / "table.tex"
        self.markdown_file = path / "report.md"
        self.report_file = path / REPORT
        self.runs = path / "runs"

    @classmethod
    def around(cls, run: Path) -> "ComparisonFolder":
        """Return the comparison that a run in this folder would belong to."""
        return cls(run.parent.parent)

    def run_path(self, label: str, seed: int) -> Path:
        """Return the folder of a run."""
        return self.runs / f"{slug(label)}-seed{seed}"

    def index(self) -> ComparisonIndex:
        """Return what is compared; an index without runs if this is no comparison."""
        return _read(ComparisonIndex, self.index_file) if self.index_file.exists() else ComparisonIndex(labels={})

    def titles(self) -> dict[Path, str]:
        """Return the runs by their labels, with their seeds if these differ."""
        labels = self.index().labels
        seeds = {name: name.rpartition("-seed")[2] for name in labels}
        several = len(set(seeds.values())) > 1
        return {
            self.runs / name: f"{label}, seed {seeds[name]}" if several else label
            for name, label in labels.items()
        }

    def write_index(self, index: ComparisonIndex) -> None:
        """Write which runs there will be. Done before the first, so that `fedwcm watch` knows of all."""
        write_json(self.index_file, index.to_json())

    def write_tables(self, csv: str, latex: str, markdown: str) -> None:
        replace_file(self.table_file, csv)
        replace_file(self.latex_file, latex)
        replace_file(self.markdown_file, markdown)


DEPTH = 4
"""Levels below the given folder that are searched: a folder of comparisons has runs three levels down."""

LISTED = 5
"""Runs below a folder that a hint names."""


def find_runs(folder: Path, *, tolerant: bool = False) -> dict[Path, str]:
    """Return a folder's runs, with titles: a comparison's planned ones, the folder itself, or any below.

    Args:
        folder: where to look.
        tolerant: take a comparison whose index cannot be read for one without runs, as it may be half-written.
    """
    if ComparisonFolder(folder).index_file.exists():
        return _titles(ComparisonFolder(folder), tolerant)
    if RunFolder(folder).holds_run:
        return {folder: folder.resolve().name}
    titles: dict[Path, str] = {}
    for name, below, _ in os.walk(folder):
        here = Path(name)
        comparison = ComparisonFolder(here)
        if comparison.index_file.exists():
            titles |= _titles(comparison, tolerant)
            below[:] = [name for name in below if name != comparison.runs.name]
        if RunFolder(here).holds_run:
            titles[here] = str(here.relative_to(folder))
            below.clear()
        below.sort()
        if len(here.relative_to(folder).parts) >= DEPTH:
            below.clear()
    return titles


def runs_below(folder: Path) -> str:
    """Return a hint for an error: the runs below a folder that was taken for one; empty if there are none."""
    below = [path for path in find_runs(folder, tolerant=True) if path != folder]
    return f"; there are runs below it: {shorten(below, LISTED)}" if below else ""


def _titles(comparison: ComparisonFolder, tolerant: bool) -> dict[Path, str]:
    try:
        return comparison.titles()
    except RecordError:
        if tolerant:
            return {}
        raise


class MetricsFollower:
    """Follows a metrics file: reads each whole line once, and starts again if the file was replaced."""

    def __init__(self, path: Path) -> None:
        self._path, self._inode, self._offset = path, -1, 0
        self.records: list[RoundRecord] = []
        self.changed = 0.0

    def read(self) -> None:
        """Read what was written since the last call."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset, self.records = status.st_ino, 0, []
                file.seek(self._offset)
                lines = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            self._inode, self._offset, self.records = -1, 0, []
            return
        self.changed = status.st_mtime
        if lines:
            self._offset += len(lines) + 1
            for line in lines.splitlines():
                with suppress(RecordError):
                    self.records.append(read_round(line, str(self._path)))
