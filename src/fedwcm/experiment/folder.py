"""A run's folder: the names of its files, and strict reading and writing. Nothing here imports torch."""

import json
import re
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fedwcm.config.schema import COMPONENTS, Config
from fedwcm.config.settings import Settings, from_settings, read_toml, with_present_names, write_toml
from fedwcm.experiment.files import parse_json, read_json, replace_file, replacing, write_json, writing
from fedwcm.experiment.records import (
    EnvironmentRecord,
    PartitionRecord,
    PersonalizationRecord,
    RoundRecord,
    Summary,
)
from fedwcm.utils.json_record import RecordError

REPORT = "report.html"
"""The page about a run or a comparison, in its folder."""

OLD_PARTITION = "split.json"
"""The name of `partition.json` in folders of version 0.1."""

SEARCH_FILE = "trials.journal"
"""The trials of a search."""


def slug(label: str) -> str:
    """A label as a part of a file's name."""
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
        lines = self.metrics_file.read_text(encoding="utf-8").split("\n")
        *whole, _cut_short = lines
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
                return PartitionRecord.from_json(read_json(file), str(file))
        return None

    def write_partition(self, partition: PartitionRecord) -> None:
        write_json(self.partition_file, partition.to_json(), indent=None)

    def environments(self) -> list[EnvironmentRecord]:
        """What worked on the run, first to last; none of a run of an older version."""
        if not self.environment_file.exists():
            return []
        held = read_json(self.environment_file)
        entries = held if isinstance(held, list) else [held]
        return [EnvironmentRecord.from_json(entry, str(self.environment_file)) for entry in entries]

    def write_environments(self, records: Iterable[EnvironmentRecord]) -> None:
        write_json(self.environment_file, [record.to_json() for record in records])

    def personalized(self) -> PersonalizationRecord | None:
        """The clients before and after they have fine-tuned the model; None if they have not."""
        if not self.personalized_file.exists():
            return None
        return PersonalizationRecord.from_json(read_json(self.personalized_file), str(self.personalized_file))

    def write_personalized(self, record: PersonalizationRecord) -> None:
        write_json(self.personalized_file, record.to_json())

    def summary(self) -> Summary:
        return Summary.from_json(read_json(self.summary_file), str(self.summary_file))

    def readable_summary(self) -> Summary | None:
        """Return the summary of a run that is to be resumed; None, with a warning, if it is damaged."""
        try:
            return self.summary() if self.finished else None
        except RecordError as error:
            warnings.warn(f"{error}: it is made again from the last checkpoint", stacklevel=3)
            return None

    def discard_results(self) -> None:
        """Remove what was computed from the final model: the run goes on, to another one."""
        for file in (self.summary_file, self.personalized_file):
            file.unlink(missing_ok=True)

    def write_summary(self, summary: Summary) -> None:
        write_json(self.summary_file, summary.to_json(), allow_nan=False)


def read_round(line: str | bytes, where: str) -> RoundRecord:
    """The record on a line of `metrics.jsonl`."""
    return RoundRecord.from_json(parse_json(line, where), where)


def metrics_line(record: RoundRecord) -> str:
    """Return the line of a record in `metrics.jsonl`."""
    return json.dumps(record.to_json(), allow_nan=False) + "\n"
