"""A comparison loads its data once, and reads no file that it has just written; a run is few calls deep."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.config import settings
from fedwcm.data import load
from fedwcm.engine.rounds import Rounds

SMALL = {"dataset": "digits", "clients": 5, "epochs": 1, "participation": 1.0, "rounds": 2}
FLAGS = [f"--{key}={value}" for key, value in SMALL.items()]
RECORDS = ("config.toml", "metrics.jsonl", "summary.json", "partition.json", "environment.json", "comparison.json")

_reads: Counter[str] = Counter()


def _count_reads(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and str(arguments[1] or "").startswith("r"):
        name = Path(str(arguments[0])).name
        if name in RECORDS:
            _reads[name] += 1


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count how often data is loaded, and a configuration made, within the block."""
    calls: Counter[str] = Counter()
    watched = {load.load_dataset.__code__: "loads", settings.from_settings.__code__: "configurations"}

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in watched:
            calls[watched[frame.f_code]] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def test_a_comparison_loads_its_data_once_and_reads_nothing_that_it_wrote(tmp_path: Path) -> None:
    sys.addaudithook(_count_reads)
    _reads.clear()
    with counted_calls() as calls:
        comparison = fedwcm.compare(["fedavg", "fedcm"], [0], tmp_path / "c", **SMALL)  # type: ignore[call-overload]
    assert dict(calls) == {"loads": 1, "configurations": 2}
    assert _reads == {}
    assert comparison.report == tmp_path / "c" / "report.html"
    again = fedwcm.open_run(tmp_path / "c")
    assert repr(again) == repr(comparison)
    assert _reads["summary.json"] == _reads["metrics.jsonl"] == 2  # once for each run
    assert _reads["comparison.json"] == 1


def test_the_first_round_is_eight_calls_below_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[list[str]] = []
    step = Rounds.step

    def spy(self: Rounds, *arguments: object, **options: object) -> object:
        frame, names = sys._getframe(1), ["step"]
        while frame.f_code is not main.__code__:
            names.append(frame.f_code.co_name)
            assert frame.f_back is not None
            frame = frame.f_back
        stacks.append(["main", *reversed(names)])
        return step(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Rounds, "step", spy)
    with counted_calls() as calls:
        assert main(["run", "--method", "fedavg", *FLAGS, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert dict(calls) == {"loads": 1, "configurations": 1}
    assert len(stacks[0]) <= 8, stacks[0]
