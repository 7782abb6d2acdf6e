"""`fedwcm watch`: what it understands of files that grow, and a real run watched on a real terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import fedwcm
from fedwcm.cli import main
from fedwcm.dashboard.follow import SILENCE, Snapshot, Watch, WatchedRun
from fedwcm.dashboard.frame import frame, status
from fedwcm.experiment.folder import MetricsFollower, RunFolder
from fedwcm.experiment.records import PartitionRecord, RoundRecord, Summary
from fedwcm.utils.text import bar, sparkline
from tests.records import round_record
from tests.records import summary as a_summary

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}


def record(number: int, **more: object) -> RoundRecord:
    accuracy = {"test_accuracy": 0.5, "per_class_accuracy": [0.9, None, 0.1], "few": 0.1}
    return round_record(number, **{**accuracy, **more})


def line(record: RoundRecord) -> str:
    return json.dumps(record.to_json()) + "\n"


def write_run(folder: Path, rounds: int, done: int, summary: Summary | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'[method]\nname = "fedwcm"\n[run]\nrounds = {rounds}\n')
    (folder / "metrics.jsonl").write_text("".join(line(record(r + 1)) for r in range(done)))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary.to_json()))
    return folder


def shown(snapshot: Snapshot, width: int = 100, height: int | None = None) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(frame(snapshot, width, height))
    return capture.get()


# --- files -------------------------------------------------------------------------------------------


def test_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsFollower(path)
    tail.read()
    assert tail.records == []
    whole = line(record(1)) + line(record(2))
    for length in range(len(whole) + 1):
        path.write_text(whole[:length])
        tail.read()
        assert len(tail.records) == whole[:length].count("\n")
    tail.read()
    assert tail.records == [record(1), record(2)]


@pytest.mark.parametrize("rounds", [2, 9])
def test_metrics_that_a_resumed_run_wrote_anew_are_read_anew(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(record(r)) for r in range(1, 6)))
    tail = MetricsFollower(path)
    tail.read()
    draft = tmp_path / "metrics.jsonl.tmp"
    anew = [record(r, test_accuracy=0.7) for r in range(1, rounds + 1)]
    draft.write_text("".join(map(line, anew)))
    os.replace(draft, path)
    tail.read()
    assert tail.records == anew


def test_it_waits_for_folders_that_are_not_there_and_notices_runs_that_begin(tmp_path: Path) -> None:
    watch = Watch([tmp_path / "later"])
    assert "not there yet" in shown(watch.look())
    assert not watch.look().ended
    (tmp_path / "later").mkdir()
    assert "no run yet in" in shown(watch.look())
    write_run(tmp_path / "later" / "a", 10, 3)
    (run,) = watch.look().runs
    assert (run.label, run.round, run.rounds, run.state) == ("a", 3, 10, "running")


def test_a_comparison_is_over_when_all_that_it_planned_is_over(tmp_path: Path) -> None:
    labels = {"fedcm-a-0.2-seed0": "fedcm[a=0.2]", "fedcm-a-0.2-seed1": "fedcm[a=0.2]"}
    (tmp_path / "comparison.json").write_text(json.dumps({"labels": labels}))
    watch = Watch([tmp_path])
    write_run(tmp_path / "runs" / "fedcm-a-0.2-seed0", 3, 3, a_summary())
    snapshot = watch.look()
    assert [(run.label, run.state) for run in snapshot.runs] == [
        ("fedcm[a=0.2], seed 0", "finished"),
        ("fedcm[a=0.2], seed 1", "waiting"),
    ]
    assert not snapshot.ended
    write_run(tmp_path / "runs" / "fedcm-a-0.2-seed1", 3, 1, a_summary(diverged="the model has a NaN"))
    assert watch.look().ended


def test_a_comparison_says_what_it_will_run_before_it_begins(tmp_path: Path) -> None:
    states: list[str] = []

    class Looking:
        def start(self, title: str, rounds: int, done: int) -> None:
            states.append(",".join(run.state for run in Watch([tmp_path]).look().runs))

        def round(self, number: int, record: RoundRecord) -> None: ...

        def close(self) -> None: ...

    options: Any = {"dataset": "digits", "clients": 10, "rounds": 1, "epochs": 1, "report": False}
    fedwcm.compare(["fedavg", "fedwcm"], [0], tmp_path, progress=Looking, **options)
    assert states == ["waiting,waiting", "finished,waiting"]
    assert Watch([tmp_path]).look().ended


# --- what is said ------------------------------------------------------------------------------------


def a_run(done: int, rounds: int = 10, age: float = 0.0, summary: Summary | None = None) -> WatchedRun:
    return WatchedRun("name", Path("x"), rounds, [record(r + 1) for r in range(done)], summary, age)


def test_time_left_is_rounds_left_at_the_latest_speed_less_what_has_passed() -> None:
    assert a_run(4).seconds_left == pytest.approx(12)
    assert a_run(4, age=5).seconds_left == pytest.approx(7)
    assert a_run(0).seconds_left is None
    slower = [record(r, seconds=float(r)) for r in range(1, 21)] + [
        record(r, seconds=20.0 + 5 * (r - 20)) for r in range(21, 31)
    ]
    assert WatchedRun("name", Path("x"), 40, slower, None, 0).seconds_left == pytest.approx(50)


def test_a_run_without_news_is_called_silent_and_one_that_diverged_so() -> None:
    assert status(a_run(4)) == "12 s left"
    assert status(a_run(4, age=SILENCE + 1)) == "no record for 1 min 01 s"
    assert status(a_run(4, summary=a_summary())) == "finished"
    diverged = a_run(4, summary=a_summary(diverged="the model has a NaN after round 5"))
    assert status(diverged) == "diverged"
    assert "the model has a NaN after round 5" in shown(Snapshot([diverged], []))


def test_few_runs_have_panels_with_classes_and_many_a_row_each() -> None:
    few = shown(Snapshot([a_run(4), a_run(0)], []))
    assert "accuracy by class" in few
    assert "round 4/10" in few
    many = shown(Snapshot([a_run(4)] * 9, []))
    assert "accuracy by class" not in many
    assert many.count("4/10") == 9
    assert "9 runs: 9 running" in many


def test_classes_are_called_by_their_names(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=4, done=2)
    assert "0     0.900" in shown(Watch([folder]).look())
    watch = Watch([folder])
    assert watch.look().runs[0].classes == ()
    names = ("a cat that has many words", "犬", "owl")
    RunFolder(folder).write_partition(PartitionRecord.of(np.ones((2, 3), dtype=int), names))
    text = shown(watch.look())
    assert "a cat that ha…  0.900" in text
    assert "owl             0.100" in text
    assert all(cell_len(line) <= 100 for line in text.splitlines())


def test_clients_are_called_by_the_names_that_the_data_give_them(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=4, done=2)
    metrics = RunFolder(folder).metrics()
    RunFolder(folder).write_metrics([replace(one, clients=(0, 2), weights=(0.5, 0.5)) for one in metrics])
    counts = np.ones((3, 3), dtype=int)
    RunFolder(folder).write_partition(
        PartitionRecord.of(counts, ("a", "b", "c"), ("Ward <B>", "Lab 5", "Hôpital Nord"))
    )
    assert "trained by Ward <B>, Hôpital Nord" in shown(Watch([folder]).look())


def test_a_frame_fits_the_terminal() -> None:
    wide = [record(1, per_class_accuracy=[0.5] * 100)]
    for runs in ([WatchedRun("name", Path("x"), 9, wide, None, 0)], [a_run(4)] * 60):
        for width, height in ((80, 24), (120, 40)):
            lines = shown(Snapshot(runs, []), width, height).splitlines()
            assert len(lines) <= height
            assert all(len(line) <= width for line in lines)


def test_runs_that_go_on_are_shown_first_where_there_is_no_room_for_all() -> None:
    over = a_run(10, summary=a_summary())
    text = shown(Snapshot([over] * 40 + [a_run(4)], []), 100, 20)
    assert "4/10" in text
    assert "41 runs: 1 running, 40 finished" in text


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(1, 80))
def test_a_sparkline_is_never_longer_than_asked_and_keeps_the_order(values: list[float], width: int) -> None:
    drawn = sparkline(values, width)
    assert len(drawn) == min(len(values), width)
    if len(values) <= width:
        for (a, x), (b, y) in zip(*[list(zip(values, drawn, strict=True))] * 2, strict=True):
            assert (a <= b) <= (x <= y)


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_bar_has_its_width_and_an_eighth_of_a_character_of_precision(share: float, width: int) -> None:
    drawn = bar(share, width)
    assert len(drawn) == width
    filled = sum(" ▏▎▍▌▋▊▉█".index(mark) for mark in drawn) / 8
    assert filled == pytest.approx(share * width, abs=1 / 16 + 1e-9)


# --- the command -------------------------------------------------------------------------------------


def test_once_prints_a_frame_and_ends_also_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", 10, 3)
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "round 3/10" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "nowhere")]) == 0
    assert "not there yet" in capsys.readouterr().out


def on_a_terminal(folder: Path) -> tuple["subprocess.Popen[bytes]", int]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fedwcm", "watch", str(folder)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    return process, ours


def read_until(terminal: int, word: str, seconds: float = 60) -> str:
    """What appears on a terminal, up to a word or the end."""
    message, deadline = b"", time.monotonic() + seconds
    while word.encode() not in message and time.monotonic() < deadline:
        try:
            message += os.read(terminal, 65536)
        except OSError:  # the other side has hung up
            break
    return message.decode(errors="replace")


def test_a_run_is_watched_on_a_terminal_from_before_it_begins_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process, terminal = on_a_terminal(folder)
    assert "not there yet" in read_until(terminal, "not there yet")
    write_run(folder, 10, 3)
    assert " left" in read_until(terminal, " left")
    RunFolder(folder).write_metrics([record(r + 1) for r in range(10)])
    RunFolder(folder).write_summary(a_summary(rounds=10))
    assert "round 10/10, finished" in read_until(terminal, "nothing more")
    assert process.wait(timeout=20) == 0
    os.close(terminal)


def test_ctrl_c_ends_watching_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 10, 3)
    process, terminal = on_a_terminal(tmp_path / "run")
    read_until(terminal, "round 3/10")
    process.send_signal(signal.SIGINT)
    message = read_until(terminal, "nothing more")
    assert process.wait(timeout=20) == 0
    assert "Traceback" not in message
    os.close(terminal)
