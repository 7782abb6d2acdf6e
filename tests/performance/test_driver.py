"""The benchmark's driver: the gate, the order of things, and contenders that fail."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from benchmarks import contender as module
from benchmarks import machine, run
from benchmarks.bars import BARS
from benchmarks.contender import Contender, FailedError, last_words
from benchmarks.environments import HERE
from benchmarks.jobs import JOBS
from benchmarks.lineup import GROUPS, Entry, Group
from benchmarks.process_tree import TICKS, cpu_seconds

PLAYER = """
import subprocess, sys, time
from benchmarks.gate import Gate
gate = Gate()
if sys.argv[1:] == ["starts another session"]:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    print(other.pid, file=sys.stderr, flush=True)
for number in range(3):
    gate.wait()
    print("a library that prints")
    time.sleep(0.05)
    if sys.argv[1:] == ["fails"] and number == 1:
        raise RuntimeError("in /some/folder/file.py")
gate.finish(loss=0.5, accuracy=0.75)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Start a small contender that runs three rounds."""
    script = tmp_path / "player.py"
    script.write_text(textwrap.dedent(PLAYER), encoding="utf-8")
    monkeypatch.setattr(module, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(module, "SETTLING", 0.0)
    monkeypatch.setattr(Entry, "command", lambda self, job, rounds: [sys.executable, str(script), *self.arguments])
    started: list[Contender] = []

    def make(*arguments: str) -> Contender:
        started.append(Contender(Entry("player", "", arguments), JOBS["J1"], 3, "player"))
        return started[-1]

    yield make
    for contender in started:
        contender.close()


def test_a_contender_plays_when_let_through_and_tells_how_long_it_took(start) -> None:  # type: ignore[no-untyped-def]
    contender = start()
    assert 0.05 <= contender.run_turn(2) < 1.0
    last = contender.finish()
    assert (last["loss"], last["accuracy"]) == (0.5, 0.75)
    assert last["memory_bytes"] > 10**6


def test_contenders_take_turns(start) -> None:  # type: ignore[no-untyped-def]
    contenders = [start(), start()]
    for _ in range(2):
        assert all(contender.run_turn(1) >= 0.05 for contender in contenders)


def test_a_contender_that_fails_says_why_without_folders(start) -> None:  # type: ignore[no-untyped-def]
    contender = start("fails")
    contender.run_turn(1)
    with pytest.raises(FailedError, match=r"ended: RuntimeError: in file\.py"):
        contender.run_turn(1)


def test_closing_a_contender_ends_what_it_started_in_another_session(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    start("starts another session").close()
    other = int((tmp_path / "logs" / "player.log").read_text())
    assert _ended_within(2.0, other)


def _ended_within(seconds: float, pid: int) -> bool:
    """Return whether a process ends; one that nobody waits for stays as a zombie."""
    until, state = time.monotonic() + seconds, Path(f"/proc/{pid}/stat")
    while state.exists() and ") Z " not in state.read_text():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_an_empty_log_has_no_message(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    assert last_words(tmp_path / "log") == "no message"


def test_every_contender_has_a_script_and_its_environment_is_pinned() -> None:
    for entry in (entry for group in GROUPS.values() for entry in group.entries):
        assert (HERE / "contenders" / f"{entry.script}.py").exists()
        assert entry.environment == "own" or (HERE / f"requirements-{entry.environment}.txt").exists()


def test_names_within_a_group_are_unique() -> None:
    for group in GROUPS.values():
        assert len({entry.name for entry in group.entries}) == len(group.entries)


def test_every_bar_finds_its_contenders_in_the_line_up() -> None:
    contenders = {
        name: {
            entry.name: {"seconds": [1.0, 1.0], "memory_bytes": 1, "ready_seconds": 1.0} for entry in group.entries
        }
        for name, group in GROUPS.items()
    }
    facts = {"warmup": 0, "parameters": 1, "data_bytes": 1, "cohort": 1}
    results = {
        "groups": {name: {**facts, "contenders": c} for name, c in contenders.items()},
        "commands": {"seconds": {name: [1.0] for name in ("help", "demo", "one run", "two runs")}},
        "large data": {"memory": {"npz": 1.0, "npy": 1.0}},
        "cluster": {"traffic": {"over_model": 1.0}, "memory": {"ray": {"growth": 1.0}}},
    }
    assert [bar.text for bar in BARS if bar.value(results) is None] == []


def test_work_of_the_benchmark_itself_is_not_load_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, whole_machine, own = [0.0], [1000], [5.0]
    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])  # type: ignore[attr-defined]
    monkeypatch.setattr(machine, "cpu_seconds", lambda pid: own[0])
    monkeypatch.setattr(machine, "_field", lambda *_: f"{whole_machine[0]} 0 0 99 99 0 0 0")
    others = machine.OtherLoad()
    clock[0] += 2.0
    own[0] += 3.0
    whole_machine[0] += 4 * TICKS
    assert others.cores() == pytest.approx(0.5)


def test_time_of_children_counts_for_their_parent() -> None:
    before = cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert cpu_seconds(os.getpid()) - before >= 0.25


def test_the_quick_trial_has_one_contender_of_each_environment_and_fails_if_one_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, status in ((None, 0), ("no such module", 1)):

        def measure(group: Group, rounds: int, error: str | None = error) -> dict[str, object]:
            environments = [entry.environment for entry in group.entries]
            assert set(environments) == {"own", "pfl", "flower", "fedlab"}
            assert (rounds, len(environments)) == (1, 5)
            return {"contenders": {"one": {"error": error} if error else {"seconds": [0.1]}}}

        monkeypatch.setattr(run, "measure", measure)
        assert run.try_environments() == status
    assert capsys.readouterr().out == "one: plays\none: no such module\n"


def test_a_resumed_benchmark_leaves_out_what_this_commit_was_measured_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []

    def measure(group: Group, rounds: int) -> dict[str, object]:
        if group.name == "J4" and not played.count("J4"):
            played.append("J4")
            raise KeyboardInterrupt
        played.append(group.name)
        return {"contenders": {}}

    arguments = ["run", "--groups", "J3,J4", "--resume", "--out", str(tmp_path / "results.json")]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(run, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        run.main()
    run.main()
    assert played == ["J3", "J4", "J4"]
