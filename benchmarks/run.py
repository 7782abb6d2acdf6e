"""Measure this package and its peers: `make bench`, or

    python -m benchmarks.run [--groups J1,J3,commands] [--resume] [--rounds N] [--only TEXT] [--out FILE]
    python -m benchmarks.run --quick

Every contender of a group is a process of its own that waits at a gate. The driver lets one through at a time: one
round of each, in an order that changes every sweep, until all rounds are played. Groups that are not measured keep
what the results file says of them. It can be stopped at any time; with `--resume`, groups that were measured at
this commit are not measured again. `--quick` measures nothing: it tries one contender of each environment for a
round, and its exit status is 1 if one fails.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import cluster, commands, large_data
from benchmarks.bars import Results
from benchmarks.contender import Contender, FailedError
from benchmarks.environments import HERE, ROOT, InstallationError, ensure
from benchmarks.jobs import CACHE
from benchmarks.lineup import GROUPS, LONG_JOB_PEERS, OURS, PLAIN, Entry, Group
from benchmarks.machine import OtherLoad, describe
from benchmarks.tables import bars_table, commands_table, group_table

LATEST = HERE / "results" / "latest.json"
COMMANDS, LARGE_DATA, CLUSTER = "commands", "large data", "cluster"
SCRIPTS = ("growth", "resnet")


def main() -> None:
    """Measure what was asked for, group by group, and write the results after each; then say which bars hold."""
    options = _options()
    # An exit closes the contenders; a plain death would leave them behind, frozen.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    if options.quick:
        sys.exit(try_environments())
    results: Results = {"groups": {}}
    if options.out.exists():
        results = json.loads(options.out.read_text(encoding="utf-8"))
    for name in options.groups.split(","):
        machine = describe()
        if options.resume and measured_at(results, name) == machine["commit"]:
            _say(f"{name}: measured at this commit already")
            continue
        if name not in GROUPS:
            if name == COMMANDS:
                _write_data("J1")
            others = OtherLoad()
            measured = _measure_alone(name, options.rounds)
            results[name] = {"machine": machine, "other_load": round(others.cores(), 3), **measured}
            if name == COMMANDS:
                print(f"\n{commands_table(measured['seconds'])}", flush=True)
        else:
            group = measure(_select(GROUPS[name], options.only), options.rounds or GROUPS[name].rounds)
            results["groups"][name] = {"machine": machine, **group}
            print(f"\n{GROUPS[name].title}\n\n{group_table(group)}", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"\n{bars_table(results)}")


def _measure_alone(name: str, rounds: int | None) -> dict[str, Any]:
    """Measure what has no contenders."""
    if name == COMMANDS:
        return {"seconds": commands.measure(rounds or 5)}
    if name == LARGE_DATA:
        return {"memory": large_data.measure()}
    if name == CLUSTER:
        return cluster.measure()
    measured: dict[str, Any] = json.loads(_python(f"benchmarks.{name}"))
    return measured


def measured_at(results: Results, name: str) -> str | None:
    """Return the commit at which a group was measured; None if it was not."""
    stored = results["groups"].get(name) or results.get(name)
    commit: str | None = stored["machine"]["commit"] if stored else None
    return commit


def measure(group: Group, rounds: int) -> dict[str, Any]:
    """Play a group's rounds; what is stored of it."""
    _write_data(group.job.name)
    about = {} if group.job.addressed else group.job.about
    outcomes: dict[str, dict[str, Any]] = {}
    running: dict[str, Contender] = {}
    total = (group.warmup + rounds) * group.turn + 1  # in the last one, memory is watched
    try:
        _start(group, total, running, outcomes)
        others = OtherLoad()
        _run_group(group, rounds, running, outcomes)
        busy = round(others.cores(), 3)
        _finish(group, running, outcomes)
    finally:
        for contender in running.values():
            contender.close()
    facts = {
        "job": group.job.title,
        "cohort": group.job.cohort,
        "warmup": group.warmup,
        "turn": group.turn,
        "other_load": busy,
        **about,
    }
    return {**facts, "contenders": outcomes}


def try_environments() -> int:
    """Let one contender of each environment play a round; return 1 if one fails, and say why."""
    first = {entry.environment: entry for entry in reversed((PLAIN[0], *LONG_JOB_PEERS, OURS))}
    entries = (*dict.fromkeys([*first.values(), OURS]),)
    contenders = measure(replace(GROUPS["J1"], entries=entries, warmup=0), 1)["contenders"]
    for name, outcome in contenders.items():
        print(f"{name}: {outcome.get('error', 'plays')}")
    return int(any("error" in outcome for outcome in contenders.values()))


def _start(group: Group, rounds: int, running: dict[str, Contender], outcomes: dict[str, dict[str, Any]]) -> None:
    for entry in group.entries:
        _say(f"{group.name}: starting {entry.name}")
        try:
            ensure(entry.environment)
            running[entry.name] = Contender(entry, group.job, rounds, f"{group.name} {entry.name}")
            outcomes[entry.name] = {"seconds": []}
        except (FailedError, InstallationError) as error:
            outcomes[entry.name] = {"error": str(error)}


def _run_group(
    group: Group, rounds: int, running: dict[str, Contender], outcomes: dict[str, dict[str, Any]]
) -> None:
    shuffle = random.Random(0).shuffle
    for sweep in range(group.warmup + rounds):
        _say(f"{group.name}: sweep {sweep + 1} of {group.warmup + rounds}")
        order = list(running)
        shuffle(order)
        for name in order:
            try:
                seconds = running[name].run_turn(group.turn)
            except FailedError as error:
                _drop(name, error, running, outcomes)
                continue
            if sweep >= group.warmup:
                outcomes[name]["seconds"].append(round(seconds, 6))


def _finish(group: Group, running: dict[str, Contender], outcomes: dict[str, dict[str, Any]]) -> None:
    for name, contender in list(running.items()):
        _say(f"{group.name}: last round of {name}")
        try:
            last = contender.finish()
        except (FailedError, subprocess.TimeoutExpired) as error:
            _drop(name, error, running, outcomes)
            continue
        outcomes[name] |= {"ready_seconds": round(contender.ready_seconds, 3), **last}


def _drop(name: str, error: Exception, running: dict[str, Contender], outcomes: dict[str, dict[str, Any]]) -> None:
    running.pop(name).close()
    outcomes[name] = {"error": str(error)}


def _select(group: Group, only: str | None) -> Group:
    """The group with the contenders whose name holds a text; all of them without one."""
    entries: tuple[Entry, ...] = tuple(e for e in group.entries if only is None or only in e.name)
    return replace(group, entries=entries)


def _write_data(job: str) -> None:
    CACHE.mkdir(exist_ok=True)
    _python("benchmarks.data", job)


def _python(module: str, *arguments: str) -> str:
    """Return the last line that a module says, in a process of its own: the driver stays small, without torch."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return output.strip().rpartition("\n")[2]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure this package and its peers.")
    everything = ",".join([*GROUPS, COMMANDS, LARGE_DATA, CLUSTER, *SCRIPTS])
    parser.add_argument("--groups", default=everything, metavar="A,B", help=f"of {everything}")
    parser.add_argument("--rounds", type=int, metavar="N", help="timed rounds of each contender")
    parser.add_argument("--only", metavar="TEXT", help="only contenders whose name holds this")
    parser.add_argument("--resume", action="store_true", help="leave out what was measured at this commit")
    parser.add_argument("--quick", action="store_true", help="only try every environment; for a nightly job")
    parser.add_argument("--out", type=Path, default=LATEST, metavar="FILE", help="where results are written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
