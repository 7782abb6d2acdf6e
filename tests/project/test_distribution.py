"""The wheel and the source distribution build, and the wheel works without the repository."""

import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.project import ROOT

pytestmark = pytest.mark.slow

DEMO = "--dataset digits --imbalance 0.1 --clients 20 --beta 0.1 --participation 0.25 --batch-size 10 --rounds 3"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="build is not installed: it comes with fedwcm[dev]")
    folder = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "build", "--outdir", folder, ROOT], PIP_CONSTRAINT=str(ROOT / "constraints.txt"))
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment that has the wheel and what it declares to need, and nothing else."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home)
    wheel = next(dist.glob("*.whl"))
    _run([sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--no-deps", wheel])
    packages = next(home.glob("lib/python*/site-packages"))
    needed = home / "needed"
    needed.mkdir()
    for name in _required(Distribution.at(next(packages.glob("*.dist-info")))):
        _link(distribution(name), needed)
    (packages / "needed.pth").write_text(f"{needed}\n", encoding="utf-8")
    return home / "bin"


def test_metadata_is_valid_and_the_readme_renders(dist: Path) -> None:
    pytest.importorskip("twine", reason="twine is not installed: it comes with fedwcm[dev]")
    assert sorted(path.suffix for path in dist.iterdir()) == [".gz", ".whl"]
    _run([sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir()])


def test_the_wheel_has_every_file_of_the_package(dist: Path) -> None:
    """Templates and assets, too, which only show when they are missed."""
    files = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    with ZipFile(next(dist.glob("*.whl"))) as wheel:
        assert {path.relative_to(ROOT / "src").as_posix() for path in files} <= set(wheel.namelist())


def test_the_wheel_is_what_is_imported(installed: Path, tmp_path: Path) -> None:
    where = _run([installed / "python", "-c", "import fedwcm; print(fedwcm.__file__)"], cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_the_demo_runs_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    command = [installed / "fedwcm", "compare", "--methods", "fedavg,fedcm,fedwcm", "--seeds", "0", *DEMO.split()]
    table = _run([*command, "--out", "runs/demo"], cwd=tmp_path)  # type: ignore[list-item]
    assert all(f" {method} " in table for method in ("fedavg", "fedcm", "fedwcm"))
    assert "<html" in (tmp_path / "runs" / "demo" / "report.html").read_text(encoding="utf-8")


def _required(found: Distribution, extras: Iterable[str] = (), seen: set[Requirement] | None = None) -> set[str]:
    """Return the distributions that one requires, and those that these require."""
    seen = set() if seen is None else seen
    names: set[str] = set()
    for requirement in map(Requirement, found.requires or ()):
        marker = requirement.marker
        applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if applies and requirement not in seen:
            seen.add(requirement)
            inner = distribution(requirement.name)
            names |= {requirement.name, *_required(inner, requirement.extras, seen)}
    return names


def _link(installed: Distribution, folder: Path) -> None:
    """Make a distribution of this environment importable from a folder."""
    for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
        if not (folder / top).exists():
            (folder / top).symlink_to(str(installed.locate_file(top)))


def _run(command: list[str | Path], cwd: Path = ROOT, **environment: str) -> str:
    """Run a program as from a shell of the user's own, and return what it prints."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
