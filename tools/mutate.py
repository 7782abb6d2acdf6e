"""Change the source a little, and see whether a test fails: `python -m tools.mutate balance metrics`.

Every mutant runs in a fork of a process that has imported the libraries but not the package, with the tests of its
group, until the first failure. What was run is kept in `runs/mutants.jsonl` and not run again while its file is
the same; the score goes to `results/mutations.json`.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from tools.mutants import Mutant, compile_mutant, find_mutants

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedwcm"
LOG = ROOT / "runs" / "mutants.jsonl"
SCORE = ROOT / "results" / "mutations.json"
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "balance": ("balance.py", ("test_balance.py", "test_paper_claims.py", "reference/test_reference.py")),
    "metrics": ("metrics/*.py", ("metrics", "test_metrics.py")),
    "statistics": ("reports/statistics.py", ("reports/test_statistics.py", "reports/test_verdicts.py")),
    "losses": ("losses/*.py", ("losses", "reference/test_zoo_losses_agreement.py", "test_loss_contract.py")),
    "partition": ("data/partition/*.py", ("data/test_partition*.py", "data/test_longtail.py")),
    "methods": ("methods/*.py", ("test_methods.py", "methods", "reference", "test_contract.py")),
    "engine": ("engine/**/*.py", ("engine", "test_contract.py", "experiment/test_moving_average.py")),
}
"""The files of each group below src/fedwcm, and the tests below tests/ that run against its mutants."""

LIBRARIES = ("torch", "numpy", "pytest", "hypothesis.extra.numpy", "sklearn.metrics", "scipy.stats", "pandas")
SECONDS = 120
"""A mutant that runs longer has changed something too."""


def main() -> None:
    """Run a sample of the mutants of each group that is named, and write the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all if none is named")
    parser.add_argument("--share", type=float, default=1.0, help="share of the mutants to run, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for library in LIBRARIES:
        importlib.import_module(library)
    outcomes = read_outcomes()
    for group in options.groups or GROUPS:
        if run_tests(find_tests(group)) != "survived":
            sys.exit(f"{group}: the tests fail, or take too long, without any change")
        for path, mutant in draw(group, options.share, options.seed):
            key = name_of(path, mutant)
            if (digest(path), key) not in outcomes:
                outcome = run_tests(find_tests(group), path, mutant)
                outcomes[digest(path), key] = outcome
                append(path, key, outcome)
                print(f"{group} {outcome}: {key}", flush=True)
        write_score(group, outcomes, options.share, options.seed)


def draw(group: str, share: float, seed: int) -> list[tuple[Path, Mutant]]:
    """Return a sample of the mutants of a group, always the same for the same files, share and seed."""
    mutants = [
        (path, mutant)
        for path in sorted(PACKAGE.glob(GROUPS[group][0]))
        for mutant in find_mutants(path.read_text(encoding="utf-8"))
    ]
    return random.Random(seed).sample(mutants, round(share * len(mutants)))


def find_tests(group: str) -> list[str]:
    """Return the test files of a group."""
    return [str(path) for pattern in GROUPS[group][1] for path in sorted((ROOT / "tests").glob(pattern))]


def name_of(path: Path, mutant: Mutant) -> str:
    """Return what a mutant is called in the log and in the list of the equivalent ones."""
    return f"{path.relative_to(PACKAGE)} {mutant.text}"


def digest(path: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def run_tests(tests: list[str], path: Path | None = None, mutant: Mutant | None = None) -> str:
    """Run tests in a child process, against a mutant if there is one: `caught`, `survived` or `slow`."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if path is not None and mutant is not None:
            _replace_module(path, mutant)
        os._exit(_run_pytest(tests))
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _end_group(child)
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "caught"
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


def _run_pytest(tests: list[str]) -> int:
    """Run pytest in this process, silently, until the first failure; return its exit code."""
    import pytest

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        options = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--basetemp={folder}/pytest"]
        return int(pytest.main([*options, *tests]))


def read_outcomes() -> dict[tuple[str, str], str]:
    """Return the outcomes so far, by the digest of the file and the mutant's name."""
    lines = LOG.read_text(encoding="utf-8").splitlines() if LOG.exists() else []
    return {(one["file"], one["mutant"]): one["outcome"] for one in map(json.loads, lines)}


def append(path: Path, key: str, outcome: str) -> None:
    """Add an outcome to the log."""
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps({"file": digest(path), "mutant": key, "outcome": outcome}) + "\n")


def write_score(group: str, outcomes: Mapping[tuple[str, str], str], share: float, seed: int) -> None:
    """Write how many mutants of a group were caught, and which were not."""
    equivalent = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else {}
    results = {name_of(*one): outcomes[digest(one[0]), name_of(*one)] for one in draw(group, share, seed)}
    survivors = sorted(name for name, outcome in results.items() if outcome == "survived")
    score = json.loads(SCORE.read_text(encoding="utf-8")) if SCORE.exists() else {}
    score[group] = {
        "share": share,
        "seed": seed,
        "run": len(results),
        "equivalent": sum(name in equivalent for name in survivors),
        "survived": [name for name in survivors if name not in equivalent],
    }
    SCORE.write_text(json.dumps(score, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{group}: {len(results)} mutants, {len(survivors)} survived", flush=True)


if __name__ == "__main__":
    main()
