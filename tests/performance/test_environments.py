"""What runs in the peers' environments imports only what their requirements have."""

import re
import subprocess
import sys
import tomllib

import pytest

from tests.project import ROOT

NAMES = {"pillow": "PIL", "scikit-learn": "sklearn"}


@pytest.mark.parametrize("peer", ["pfl", "flower", "fedlab"])
def test_a_peer_imports_nothing_that_its_environment_lacks(peer: str) -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    needed = {re.split(r"[>=\[]", line)[0].lower() for line in ours}
    listed = (ROOT / "benchmarks" / f"requirements-{peer}.txt").read_text(encoding="utf-8").lower().split()
    missing = needed - {line.split("==")[0].replace("_", "-") for line in listed} - {"torch"}
    blocked = [NAMES.get(name, name.replace("-", "_")) for name in sorted(missing)]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); import benchmarks.training, benchmarks.gate"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
