"""Change the source a little, and see whether a test fails: `python -m tools.mutate balance metrics --share 0.2`.

First the tests of `JUDGES` run once, to see which functions each calls (`runs/covering/`). Then a mutant runs in
a fork of a process that has imported the libraries but not the package, against the tests that call its function,
the quickest first, until one fails. Outcomes are kept in `runs/mutants.jsonl`, and a mutant is not run again while
its definition is the same, but with `--again` if it survived. The score goes to `results/mutations.json` and to
docs/reliability.md.
"""

import argparse
import contextlib
import importlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from tools.covering_tests import SHARED, Recorder, Selection, choose_tests, record_path
from tools.generated import write_blocks
from tools.mutants import Mutant, compile_mutant, find_mutants

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedwcm"
LOG = ROOT / "runs" / "mutants.jsonl"
COVERING = ROOT / "runs" / "covering"
SCORE = ROOT / "results" / "mutations.json"
PAGE = ROOT / "docs" / "reliability.md"
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"

GROUPS = {
    "balance": "balance.py",
    "metrics": "metrics/*.py",
    "statistics": "reports/statistics.py",
    "losses": "losses/*.py",
    "partition": "data/partition/*.py",
    "methods": "methods/*.py",
    "engine": "engine/**/*.py",
}
"""The files of each group below src/fedwcm."""

ON_OTHER_NODES = ("backend", "cluster", "pool", "worker")
"""The files of engine/backends/on_ray that Ray imports in processes of its own, where no mutant is."""

JUDGES = (
    *("test_balance", "test_contract", "test_defaults", "teacher/test_teacher"),
    *("api/test_own_partition", "api/test_personalize", "data/test_partition*", "data/test_longtail", "engine/*"),
    *("data/test_own_clients", "data/test_held_out_clients", "experiment/test_moving_average", "losses/*"),
    *("methods/*", "metrics/*", "models/test_predictor", "on_ray/test_fixed_point", "on_ray/test_packing"),
    *("reference/*", "reliability/test_workers", "reports/test_statistics", "reports/test_verdicts"),
)
"""The tests below tests/ that judge; not those of Flower, a cluster or the command line, which take long."""

LIBRARIES = ("torch", "numpy", "pytest", "hypothesis.extra.numpy", "sklearn.metrics", "scipy.stats", "pandas")
SECONDS = 120.0
"""The tests of a mutant take so long at most; the quickest are run."""
MEMORY = 6 << 30

Outcomes = dict[tuple[str, str], str]


def main() -> None:
    """Run a sample of the mutants of each group that is named, and write the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all if none is named")
    parser.add_argument("--share", type=float, default=1.0, help="share of the mutants to run, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="run mutants that survived before again")
    options = parser.parse_args()
    for library in LIBRARIES:
        importlib.import_module(library)
    records = record_tests()
    outcomes = read_outcomes()
    for group in options.groups or GROUPS:
        for path, mutant in draw(group, options.share, options.seed):
            key = name_of(path, mutant)
            before = outcomes.get((mutant.definition, key))
            if before is None or (options.again and before == "survived"):
                outcome = run_mutant(records, path, mutant)
                outcomes[mutant.definition, key] = outcome
                append(mutant, key, outcome)
                print(f"{time.strftime('%H:%M:%S')} {group} {outcome}: {key}", flush=True)
        write_score(group, outcomes, options.share, options.seed)
    write_page()


def draw(group: str, share: float, seed: int) -> list[tuple[Path, Mutant]]:
    """Return a sample of the mutants of a group; a larger share has those of a smaller one, and others."""
    mutants = find_all(group)
    random.Random(seed).shuffle(mutants)
    return mutants[: round(share * len(mutants))]


def find_all(group: str) -> list[tuple[Path, Mutant]]:
    """Return all mutants of a group."""
    files = sorted(PACKAGE.glob(GROUPS[group]))
    paths = [path for path in files if path.parent.name != "on_ray" or path.stem not in ON_OTHER_NODES]
    return [(path, mutant) for path in paths for mutant in find_mutants(path.read_text(encoding="utf-8"))]


def name_of(path: Path, mutant: Mutant) -> str:
    """Return what a mutant is called in the log and in the list of the equivalent ones."""
    return f"{path.relative_to(PACKAGE)} {mutant.text}"


def record_tests() -> list[Path]:
    """Run every judge once, but for those whose record is there already; return the records."""
    COVERING.mkdir(parents=True, exist_ok=True)
    records = []
    for file in sorted({file for pattern in JUDGES for file in (ROOT / "tests").glob(f"{pattern}.py")}):
        if not file.name.startswith("test_"):
            continue
        record = record_path(COVERING, file)
        records.append(record)
        if not record.exists():
            outcome = run_child(partial(_record, file, record), cpu=1200, elapsed=7200)
            if outcome != "survived":
                sys.exit(f"{file}: the tests fail, or take too long, without any change")
            print(f"{time.strftime('%H:%M:%S')} recorded {file.relative_to(ROOT)}", flush=True)
    return records


def _record(file: Path, record: Path) -> int:
    recorder = Recorder(PACKAGE)
    code = _run_pytest([str(file)], recorder)
    if code == 0:
        recorder.write(record, shared=SHARED.search(file.read_text(encoding="utf-8")) is not None)
    return code


def run_mutant(records: list[Path], path: Path, mutant: Mutant) -> str:
    """Run the tests of a mutant in a child process: `caught`, `survived` or `slow`."""
    tests, seconds = choose_tests(records, str(path.relative_to(PACKAGE)), mutant.function, SECONDS)
    if not tests:
        return "survived"
    files = list(dict.fromkeys(str(ROOT / test.partition("::")[0]) for test in tests))

    def judge() -> int:
        _replace_module(path, mutant)
        return _run_pytest(files, Selection(tests))

    return run_child(judge, cpu=20 + 2 * round(seconds), elapsed=600 + 10 * seconds)


def run_child(judge: Callable[[], int], cpu: int, elapsed: float) -> str:
    """Run a judgement in a child process, within seconds of processor time and on the clock."""
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        os._exit(judge())
    deadline = time.monotonic() + elapsed
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _end_group(child)
            code = os.waitstatus_to_exitcode(status)
            return "slow" if code == -signal.SIGXCPU else "caught" if code else "survived"
        time.sleep(0.02)
    _end_group(child)
    os.waitpid(child, 0)
    return "slow"


def _end_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _replace_module(path: Path, mutant: Mutant) -> None:
    """Let this process import the mutant in place of its module."""
    original = SourceFileLoader.get_code
    mutated = compile_mutant(path.read_text(encoding="utf-8"), mutant, str(path))

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        return mutated if Path(loader.path) == path else original(loader, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def _run_pytest(tests: list[str], plugin: object) -> int:
    """Run pytest in this process, silently, until the first failure; return its exit code."""
    import pytest

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        options = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--basetemp={folder}/pytest"]
        return int(pytest.main([*options, *tests], plugins=[plugin]))


def read_outcomes() -> Outcomes:
    """Return the outcomes so far, by the digest of the definition and the mutant's name."""
    lines = LOG.read_text(encoding="utf-8").splitlines() if LOG.exists() else []
    return {(one["definition"], one["mutant"]): one["outcome"] for one in map(json.loads, lines)}


def append(mutant: Mutant, key: str, outcome: str) -> None:
    """Add an outcome to the log."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps({"definition": mutant.definition, "mutant": key, "outcome": outcome}) + "\n")


def write_score(group: str, outcomes: Mapping[tuple[str, str], str], share: float, seed: int) -> None:
    """Write how many mutants of a group were caught, and which were not."""
    equivalent = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    sample = draw(group, share, seed)
    results = {name_of(*one): outcomes[one[1].definition, name_of(*one)] for one in sample}
    survivors = sorted(name for name, outcome in results.items() if outcome == "survived")
    score = json.loads(SCORE.read_text(encoding="utf-8")) if SCORE.exists() else {}
    score[group] = {
        "possible": len(find_all(group)),
        "share": share,
        "seed": seed,
        "run": len(results),
        "slow": sum(outcome == "slow" for outcome in results.values()),
        "equivalent": sum(name in equivalent for name in survivors),
        "survived": [name for name in survivors if name not in equivalent],
    }
    SCORE.write_text(json.dumps(score, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{group}: {len(results)} mutants, {len(survivors)} survived", flush=True)


def write_page() -> None:
    """Write the scores on the page."""
    score = json.loads(SCORE.read_text(encoding="utf-8"))
    groups = [group for group in GROUPS if group in score]
    rows = [(group, f"`{GROUPS[group]}`", score[group]) for group in groups]
    total = {key: sum(score[group][key] for group in groups) for key in ("possible", "run", "slow", "equivalent")}
    survivors = [name for group in groups for name in score[group]["survived"]]
    rows.append(("all", "", {**total, "survived": survivors}))
    lines = ["| group | files | possible | run | equivalent | caught | survived | score |", "| --- " * 8 + "|"]
    lines += [_format_row(*row) for row in rows]
    lines += ["", "Survivors:" if survivors else "None survived.", ""]
    lines += [f"- `{name}`" for name in survivors]
    write_blocks(PAGE, {"mutations": lines})


def _format_row(group: str, files: str, score: Mapping[str, Any]) -> str:
    survived, judged = len(score["survived"]), score["run"] - score["equivalent"]
    cells = (group, files, score["possible"], score["run"], score["equivalent"], judged - survived, survived)
    return "| " + " | ".join(map(str, cells)) + f" | {1 - survived / judged:.1%} |"


if __name__ == "__main__":
    main()
