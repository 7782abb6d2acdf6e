"""Nearly balanced data: no groups of classes by their size, and nothing that misses them."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedwcm.cli import main

COMMON = ["--label", "y", "--rounds", "1", "--clients", "3", "--epochs", "1", "--participation", "1"]
SHOTS = ("many", "medium", "few")


def test_nothing_is_said_of_groups_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    table = tmp_path / "even.csv"
    rows = [f"{a:.3f},{b:.3f},{n % 3}" for n, (a, b) in enumerate(rng.normal(size=(90, 2)))]
    table.write_text("\n".join(["a,b,y", *rows]))
    out = tmp_path / "both"
    methods = ["--methods", "fedavg,fedwcm", "--set", "run.diagnostics=['concentration']"]
    assert main(["compare", *methods, "--dataset", str(table), *COMMON, "--out", str(out)]) == 0
    folder = next(path.parent for path in out.rglob("summary.json"))
    message = [capsys.readouterr().out]
    assert main(["evaluate", str(folder)]) == 0
    assert main(["report", str(folder)]) == 0
    assert main(["watch", str(folder), "--once"]) == 0
    assert main(["watch", str(out), "--once"]) == 0
    message += [capsys.readouterr().out, *(path.read_text() for path in out.glob("*.[cm]*"))]
    record = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    summary = json.loads((folder / "summary.json").read_text())
    for shot in SHOTS:
        assert shot not in record
        assert shot not in summary
        assert not any(shot in text.split() for text in message), shot
        assert not any(f"{shot}_" in text for text in message), shot
    pages = [path.read_text() for path in out.rglob("*.html")]
    assert len(pages) == 2
    assert not any("medium" in page.partition("<script")[0] for page in pages)
    assert not any("nan" in text.lower().split() for text in message)
