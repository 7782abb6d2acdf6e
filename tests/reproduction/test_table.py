"""The table of a preset: means over seeds, what ranks the methods, and the paper's numbers beside ours."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwcm.reproduction.figures import draw_beside_paper, figures
from fedwcm.reproduction.presets import load_preset
from fedwcm.reproduction.store import StoredRun
from fedwcm.reproduction.table import Entry, csv_text, markdown
from tests.records import round_record, summary


def outcome(seed_accuracy: float | None, diverged: str | None = None) -> StoredRun:
    history = [] if seed_accuracy is None else [round_record(1, test_accuracy=seed_accuracy)]
    measured = {"final_accuracy": seed_accuracy, "balanced_accuracy": seed_accuracy}
    return StoredRun(summary(**measured, diverged=diverged), history)


def test_the_last_accuracy_of_a_diverged_run_is_in_no_mean(tmp_path: Path) -> None:
    preset = load_preset("figure10")
    lost = "round 3: the model is not finite"
    runs = {
        "1": [outcome(0.5), outcome(0.7), outcome(0.1, lost)],
        "5": [outcome(0.1, lost)],
        "10": [outcome(None)],
    }
    cells = [
        Entry({"dataset": "digits", "epochs": epochs, "method": "FedAvg"}, found, 3, 0.5)
        for epochs, found in runs.items()
    ]
    rows = list(csv.DictReader(io.StringIO(csv_text(cells))))
    assert [(row["ours"], row["seeds"], row["diverged"], row["difference"]) for row in rows] == [
        ("0.6", "2", "1", "0.1"),
        ("", "0", "1", ""),
        ("", "0", "0", ""),
    ]
    assert rows[0]["std"] == f"{np.std([0.5, 0.7], ddof=1):.6g}"
    table = markdown(preset, cells)
    drawn = tmp_path / "beside.png"
    assert draw_beside_paper(cells, drawn)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert not draw_beside_paper([replace(entry, paper=None) for entry in cells], drawn)
    assert "0.600 ± 0.141 (1 of 3 diverged) / 0.500" in table
    assert "diverged / 0.500 |" in table
    figure: Any
    (figure,) = figures(preset, cells)
    assert [(curve.x, curve.y) for curve in figure.curves] == [([1.0, 5.0], [pytest.approx(0.6), None])]
    assert "diverged are left out" in figure.caption


def run_with(recalls: tuple[float, float]) -> StoredRun:
    """A run tested on 90 and 10 samples of two classes, with these recalls."""
    frequent, rare = round(90 * recalls[0]), round(10 * recalls[1])
    confusion = ((frequent, 90 - frequent), (10 - rare, rare))
    measured = {"final_accuracy": (frequent + rare) / 100, "balanced_accuracy": sum(recalls) / 2}
    return StoredRun(summary(**measured, confusion=confusion), [])


@pytest.mark.parametrize(
    ("paper", "shown"),
    [(None, ("**0.750** (accuracy 0.710)", "0.500 (accuracy 0.900)")), (0.8, ("0.710 (balanced", "**0.900** (b"))],
)
def test_classes_rank_methods_on_an_unbalanced_test_unless_papers_do(
    paper: float | None, shown: tuple[str, str]
) -> None:
    recalls = {"fedwcm+longtail": (0.7, 0.8), "fedavg": (1.0, 0.0)}
    cells = [
        Entry({"dataset": "wisdm.npz", "method": method}, [run_with(each)], 1, paper)
        for method, each in recalls.items()
    ]
    table = markdown(load_preset("natural"), cells)
    assert all(text in table for text in shown)
