"""What is imported, and when: the start of a command is mostly imports, and counting them needs no clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STAGES = """
import json, sys

def stage(name):
    seen[name] = sorted(sys.modules)

seen = {}
import fedwcm
stage("package")
from fedwcm.cli import main
try:
    main(["--help"])
except SystemExit:
    stage("help")
fedwcm.run("fedwcm", dataset="digits", clients=4, rounds=1, progress=False)
stage("run")
print(json.dumps(seen))
"""
HEAVY = {
    "torch",
    "scipy",
    "sklearn",
    "flwr",
    "ray",
    "matplotlib",
    "pandas",
    "optuna",
    "datasets",
    "tenseal",
    "PIL",
}


def test_each_stage_imports_no_more_than_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", STAGES], check=True, capture_output=True, text=True)
    seen = {stage: set(modules) for stage, modules in json.loads(done.stdout.splitlines()[-1]).items()}
    assert "numpy" not in seen["package"]
    assert HEAVY.isdisjoint(seen["package"])
    assert HEAVY.isdisjoint(seen["help"])
    assert HEAVY & seen["run"] == {"torch"}
    unused = {f"fedwcm.{room}" for room in ("reports", "reproduction", "dashboard", "flower", "sweeps.execution")}
    assert unused.isdisjoint(seen["run"])


@pytest.mark.parametrize("module", ["balance", "data", "privacy", "dashboard.follow"])
def test_what_computes_without_a_model_needs_no_torch(module: str) -> None:
    heavy = sorted(HEAVY | {"pyarrow", "pooch"})
    code = f"import sys, fedwcm.{module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


FIRST_LINE = """
import logging, os, sys

class Handler(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), "torch" in sys.modules, flush=True)
        os._exit(0)

logging.getLogger("fedwcm").addHandler(Handler())
from fedwcm.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("run --method fedcm --dataset digits --out {}", "fedcm on digits, into {}"),
        (
            "compare --methods fedavg,fedcm --seeds 0-1 --dataset digits --out {}",
            "fedavg, fedcm, seeds 0-1, into {}",
        ),
    ],
)
def test_a_command_says_what_it_does_before_torch_is_imported(arguments: str, line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIRST_LINE, *arguments.format(tmp_path).split()]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == f"{line.format(tmp_path)} False\n"
