"""The import rules of docs/architecture.md: layers import downwards only."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedwcm

ROOT = Path(fedwcm.__file__).parent

ZOO = {"methods", "losses", "samplers"}
ALLOWED: dict[str, set[str]] = {
    "utils": set(),
    "balance": set(),
    "core": {"balance", "utils"},
    "methods": {"core", "balance", "teacher"},
    "losses": {"core", "balance", "teacher"},
    "samplers": {"core"},
    "teacher": {"data"},
    "data": {"utils", "core"},
    "models": {"utils", "core", "balance"},
    "metrics": {"core", "engine"},
    "engine": {"utils", "core", "models"},
    "privacy": {"core", "utils"},
    "config": {"utils", "core", "engine", "privacy"},
    "experiment": {
        "utils",
        "balance",
        "core",
        "engine",
        "config",
        "data",
        "metrics",
        "models",
        "privacy",
        "teacher",
        *ZOO,
    },
    "dashboard": {"utils", "experiment"},
    "reports": {"utils", "core", "config", "data", "metrics", "experiment"},
    "flower": {
        *("utils", "balance", "core", "engine", "config", "experiment", "losses", "privacy", "teacher", "reports")
    },
    "sweeps": {"utils", "core", "engine", "config", "data", "experiment", "reports"},
    "reproduction": {
        "utils",
        "core",
        "engine",
        "config",
        "data",
        "experiment",
        "methods",
        "models",
        "privacy",
        "reports",
        "sweeps",
    },
    "api": {
        *("utils", "core", "engine", "config", "data", "models", "metrics", "privacy"),
        *("experiment", "reports", "sweeps", *ZOO),
    },
    "testing": {"utils", "core", "engine", "config", "losses", "samplers"},
}
"""What each room may import of the others; what stands above them all may import everything."""

TOP = {"__init__", "__main__", "cli", "diagnosis"}


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, wherever in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name for name in found if name.startswith("fedwcm.")}


FILES = sorted(path for path in ROOT.rglob("*.py") if "template" not in path.parts)


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_room_has_a_rule() -> None:
    assert {room(path) for path in FILES} == {*ALLOWED, *TOP}


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in ALLOWED], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    own = room(path)
    used = {name.split(".")[1] for name in imports(path)} - {own, "__version__"}
    assert used <= ALLOWED[own], f"{own} may not import {sorted(used - ALLOWED[own])}"


def test_the_rules_permit_no_more_than_is_used() -> None:
    used: dict[str, set[str]] = {}
    for path in FILES:
        used.setdefault(room(path), set()).update(name.split(".")[1] for name in imports(path))
    assert {own: rooms - used[own] for own, rooms in ALLOWED.items() if rooms - used[own]} == {}


def test_nothing_outside_the_engine_imports_its_fast_paths() -> None:
    outside = [p for p in FILES if room(p) != "engine"]
    assert not [p for p in outside if any(name.startswith("fedwcm.engine.fast") for name in imports(p))]


def test_nothing_is_unpickled_but_what_own_processes_send() -> None:
    code = re.compile(r"torch\.load\(|pickle\.loads?\(|allow_pickle=True|trust_remote_code|yaml\.load\(")
    unsafe = [path.name for path in FILES if code.search(path.read_text(encoding="utf-8"))]
    assert unsafe == ["packing.py"], "between the machines of a Ray cluster"


def test_words_need_no_torch() -> None:
    modules = ", ".join(f"fedwcm.config.{path.stem}" for path in sorted((ROOT / "config").glob("[a-z]*.py")))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


WITHOUT_POSIX = """
import importlib, sys
sys.modules.update(dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty")))
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_no_module_needs_a_library_of_posix_alone_when_it_is_imported() -> None:
    """Windows has none of them. Ray and Flower are left out: theirs are not ours."""
    elsewhere = {
        "on_ray",
        "cluster_calls",
        "runs_on_cluster",
        "on_cluster",
        "tune",
        "tuning",
        "flower",
        "__main__",
    }
    modules = [".".join(("fedwcm", *path.relative_to(ROOT).with_suffix("").parts)) for path in FILES]
    modules = [name.removesuffix(".__init__") for name in modules if not elsewhere & set(name.split("."))]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


PUBLIC_OF_FLOWER = (
    "flwr",
    "flwr.app",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
)
WITHOUT_PUBLIC_TWIN = {
    "flwr.common.config": {"flatten_dict", "parse_config_args"},
    "flwr.common.secure_aggregation.crypto.shamir": {"combine_shares"},
    "flwr.common.secure_aggregation.crypto.symmetric_encryption": {"generate_shared_key"},
    "flwr.common.secure_aggregation.secaggplus_constants": {"Key", "RECORD_KEY_CONFIGS", "Stage"},
    "flwr.common.secure_aggregation.secaggplus_utils": {"pseudo_rand_gen"},
}
"""What reads `--run-config` as Flower does, and Flower's side of SecAgg+, which its own mod speaks."""


def test_of_flower_s_modules_only_public_ones_are_imported_where_there_are_any() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedwcm[flower]'")
    private: dict[str, set[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = str(node.module) if isinstance(node, ast.ImportFrom) else ""
            if module.split(".")[0] == "flwr" and module not in PUBLIC_OF_FLOWER:
                private.setdefault(module, set()).update(alias.name for alias in getattr(node, "names", ()))
    assert private == WITHOUT_PUBLIC_TWIN
    public = {name for module in PUBLIC_OF_FLOWER for name in dir(importlib.import_module(module))}
    assert not public & set().union(*private.values())
