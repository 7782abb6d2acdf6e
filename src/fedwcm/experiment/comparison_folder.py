"""A comparison's folder: its index, its tables, and a folder per run. Nothing here imports torch."""

from pathlib import Path

from fedwcm.experiment.files import read_json, replace_file, write_json
from fedwcm.experiment.folder import REPORT, slug
from fedwcm.experiment.records import ComparisonIndex


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
        """The comparison that a run in this folder would belong to."""
        return cls(run.parent.parent)

    def run_path(self, label: str, seed: int) -> Path:
        """The folder of a run."""
        return self.runs / f"{slug(label)}-seed{seed}"

    def index(self) -> ComparisonIndex:
        """What is compared; an index without runs if this is no comparison."""
        if not self.index_file.exists():
            return ComparisonIndex(labels={})
        return ComparisonIndex.from_json(read_json(self.index_file), str(self.index_file))

    def titles(self) -> dict[Path, str]:
        """The runs by their labels, with their seeds if these differ."""
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
