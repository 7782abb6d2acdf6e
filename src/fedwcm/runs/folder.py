"""A run's folder: its configuration, metrics, summary, checkpoints and model."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedwcm.config.schema import Config, from_settings, read_toml, write_toml
from fedwcm.core.types import Ints, State
from fedwcm.runs.files import replacing, writing

Record = dict[str, object]

LISTED_CLIENTS, LISTED_COUNTS = 2_000, 400_000
"""Clients, and clients times classes, up to which the whole split is written; of more, every so many clients."""


class RunFolder:
    """Paths and formats. Everything is written such that a crash leaves the old file or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @property
    def holds_run(self) -> bool:
        return (self.path / "config.toml").exists()

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    def config(self) -> Config:
        return from_settings(read_toml(self.path / "config.toml"))

    def write_config(self, config: Config) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with replacing(self.path / "config.toml") as draft:
            write_toml(config, draft)

    def metrics(self) -> list[Record]:
        """The evaluated rounds so far; a line that a crash cut short is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    def write_metrics(self, records: list[Record]) -> None:
        """Replace the metrics: a run starts with none, a resumed one with those of its checkpoint."""
        self._replace("metrics.jsonl", "".join(map(_line, records)))

    def append_metrics(self, record: Record) -> None:
        path = self.path / "metrics.jsonl"
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(_line(record))

    def split(self) -> Record | None:
        """Who holds how much of what; None in the folder of a run that did not know."""
        path = self.path / "split.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write_split(self, counts: Ints, classes: Sequence[str]) -> None:
        """Write the samples of each client and class: of every `every`-th client where there are very many."""
        self.path.mkdir(parents=True, exist_ok=True)
        every = math.ceil(max(len(counts) / LISTED_CLIENTS, counts.size / LISTED_COUNTS, 1))
        totals = counts.sum(axis=0).tolist()
        split = {"classes": list(classes), "clients": len(counts), "totals": totals, "every": every}
        self._replace("split.json", json.dumps({**split, "counts": counts[::every].tolist()}) + "\n")

    def summary(self) -> Record:
        summary: Record = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        return summary

    def write_summary(self, summary: Record) -> None:
        self._replace("summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def model(self) -> tuple[State, Record]:
        """The trained parameters, and what it takes to use them: input shape, classes, normalisation."""
        path = self.path / "model.safetensors"
        with safe_open(path, framework="pt") as file:
            facts: Record = json.loads(file.metadata()["fedwcm"])
        return load_file(path), facts

    def write_model(self, state: State, facts: Record) -> None:
        tensors = {key: value.cpu().contiguous() for key, value in state.items()}
        with replacing(self.path / "model.safetensors") as draft:
            save_file(tensors, draft, metadata={"fedwcm": json.dumps(facts)})

    def _replace(self, name: str, text: str) -> None:
        with replacing(self.path / name) as draft:
            draft.write_text(text, encoding="utf-8")


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def finite(record: Record) -> Record:
    """The record with null in the place of numbers that JSON cannot hold."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
