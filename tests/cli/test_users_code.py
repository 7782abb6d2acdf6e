"""Errors of the user's own code on the command line."""

from pathlib import Path

import pytest

from fedwcm.cli import main

OWN = """
from dataclasses import dataclass
import fedwcm

@dataclass(frozen=True, kw_only=True)
class Unlucky(fedwcm.Method):
    alpha: float = 0.5

    def __post_init__(self):
        if self.alpha > 1:
            raise ValueError("alpha is too large")

    def weights(self, s, cohort):
        one, other = cohort.samples
        return one
"""


def test_an_error_of_the_users_code_is_shown_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unlucky.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    common = ["--dataset", "digits", "--clients", "4", "--rounds", "1", "--epochs", "1", "--quiet", "--out", "out"]
    assert main(["run", "--method", "unlucky:Unlucky", *common, "--participation", "1"]) == 1
    printed = capsys.readouterr().err
    assert "one, other = cohort.samples" in printed
    assert 'unlucky.py", line 14, in weights' in printed
    assert printed.rstrip().endswith("error: too many values to unpack (expected 2)")
    assert main(["run", "--method", "unlucky:Unlucky[alpha=2]", *common]) == 2
    assert main(["run", "--method", "unlucky:Lucky", *common]) == 2
    assert main(["run", "--method", "fedavg", "--dataset", "none.csv"]) == 2
    assert "Traceback" not in capsys.readouterr().err
