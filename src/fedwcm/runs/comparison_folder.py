"""A comparison's folder: its index, its tables, and a folder per run. Nothing here imports torch."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from fedwcm.runs.files import replace_file
from fedwcm.runs.folder import REPORT, RunFolder, read_json
from fedwcm.runs.records import OUTCOMES, ComparisonIndex


class ComparisonFolder:
    """The files of a comparison."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index_file = path / "comparison.json"
        self.table_file = path / "table.csv"
        self.markdown_file = path / "report.md"
        self.report_file = path / REPORT
        self.runs = path / "runs"

    @classmethod
    def around(cls, run: Path) -> "ComparisonFolder":
        """The comparison that a run in this folder would belong to."""
        return cls(run.parent.parent)

    def run_path(self, label: str, seed: int) -> Path:
        """The folder of a run."""
        slug = re.sub(r"[^A-Za-z0-9.+-]+", "-", label).strip("-")
        return self.runs / f"{slug}-seed{seed}"

    def labels(self) -> Mapping[str, str]:
        """The label of each run's folder, in the order of the comparison; empty if this is no comparison."""
        if not self.index_file.exists():
            return {}
        return ComparisonIndex.from_json(read_json(self.index_file), str(self.index_file)).labels

    def titles(self) -> dict[Path, str]:
        """The runs by their labels, with their seeds if these differ."""
        labels = self.labels()
        seeds = {name: name.rpartition("-seed")[2] for name in labels}
        several = len(set(seeds.values())) > 1
        return {
            self.runs / name: f"{label}, seed {seeds[name]}" if several else label
            for name, label in labels.items()
        }

    def write_index(self, labels: Mapping[str, str]) -> None:
        """Write which runs there will be. Done before the first, so that `fedwcm watch` knows of all."""
        self._write(ComparisonIndex(labels=labels))

    def write_outcomes(self, labels: Mapping[str, str]) -> None:
        """Write the index again, with the numbers of the runs, which are finished."""
        summaries = {name: RunFolder(self.runs / name).summary() for name in labels}
        outcomes = {
            name: {key: value for key in OUTCOMES if (value := summary.number(key)) is not None}
            for name, summary in summaries.items()
        }
        self._write(ComparisonIndex(labels=labels, outcomes=outcomes))

    def _write(self, index: ComparisonIndex) -> None:
        replace_file(self.index_file, json.dumps(index.to_json(), indent=2) + "\n")

    def write_tables(self, csv: str, markdown: str) -> None:
        replace_file(self.table_file, csv)
        replace_file(self.markdown_file, markdown)
