"""An environment of its own for each peer, installed from the package index with exact versions.

    python -m benchmarks.environments pfl flower fedlab

A requirements file lists everything, so nothing is resolved. torch comes first and alone: its exact version
selects the build, and nothing later may replace it.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
VENVS = HERE / ".venvs"
OWN = "own"
"""The environment that the driver itself runs in: this package and the plain loops."""


class InstallationError(RuntimeError):
    """A peer's environment could not be made."""


def python(environment: str) -> Path:
    """The interpreter of an environment."""
    return Path(sys.executable) if environment == OWN else VENVS / environment / "bin" / "python"


def ensure(environment: str) -> None:
    """Make an environment, unless it is there with the versions that are asked for."""
    if environment == OWN:
        return
    wanted = HERE / f"requirements-{environment}.txt"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    stamp = VENVS / environment / "ready"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    VENVS.mkdir(exist_ok=True)
    interpreter, log = str(python(environment)), VENVS / f"{environment}.log"
    install = [interpreter, "-m", "pip", "install"]
    with log.open("w", encoding="utf-8") as output:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(VENVS / environment)],
            [*install, _torch()],
            [*install, "--no-deps", "--requirement", str(wanted)],
        ):
            code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
            if code:
                raise InstallationError(f"not installed: exit code {code}, see {log.relative_to(ROOT)}")
    stamp.write_text(digest, encoding="utf-8")


def _torch() -> str:
    """The torch that this package is tested with."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        ensure(name)
