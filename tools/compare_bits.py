"""Compare the bits of thirteen kinds of run between this checkout and another commit.

    python -m tools.compare_bits 34067d5

Both run with the same interpreter, libraries, threads and backend, so that every difference comes from the
source. What is compared is the trained model and, of every round, what the clients did: their losses, weights
and bytes.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).parent.parent
TABLE = "{table}"
"""Stands for the path of a small table with clients of its own."""

BACKEND = ["--backend", "vectorized"]
"""Of runs that name none: what `auto` chooses may differ between commits, and with it the rounding."""

DIGITS = "--dataset digits --clients 12 --participation 0.4 --rounds 4 --epochs 1"
RUNS = {
    "fedavg, stacked": f"{DIGITS} --method fedavg --backend vectorized",
    "fedwcm, adaptive": f"{DIGITS} --method fedwcm --beta 0.3",
    "recipe for rare classes": f"{DIGITS} --method fedwcm[adaptive=false] --loss prior_ce[normalize=true,scale=10]"
    " --sampler balanced --set server.ema=0.9",
    "scaffold, one by one": f"{DIGITS} --method scaffold --backend sequential --model cnn",
    "fedcm, workers, clipping": f"{DIGITS} --method fedcm --backend parallel --model cnn --set local.clip=1.0",
    "mofedsam": f"{DIGITS} --method mofedsam",
    "mime": f"{DIGITS} --method mime",
    "creff": f"{DIGITS} --method creff",
    "balancefl": f"{DIGITS} --method balancefl",
    "fedgrab": f"{DIGITS} --method fedgrab",
    "fedavg, adam, unequal clients": f"{DIGITS} --method fedavg --partition creff --set local.optimizer=adam",
    "table, own clients, validation": f"--dataset {TABLE} --label label --client client"
    " --method fedwcm-x --rounds 4 --participation 0.5 --val-fraction 0.2 --set run.select_by=accuracy",
    "encrypted counts": f"{DIGITS} --method fedwcm --set privacy.mode=he",
}
COMPARED = ("train_loss", "train_accuracy", "clients", "weights", "alpha", "bytes_up", "bytes_down")


def main() -> int:
    """Compare both checkouts; return 1 if any kind of run differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument("--only", default="", help="a part of the names of the runs to compare")
    arguments = parser.parse_args()
    different = 0
    with checkout(arguments.revision) as other, tempfile.TemporaryDirectory() as folder:
        table = write_table(Path(folder))
        for name, options in RUNS.items():
            if arguments.only in name:
                words = [str(table) if word == TABLE else word for word in options.split()]
                words += [] if BACKEND[0] in words else BACKEND
                before, after = (digest_run(tree, words) for tree in (other, ROOT))
                different += before != after
                print(f"{'same' if before == after else 'DIFFERENT':10} {name}", flush=True)
    return int(different > 0)


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Yield a folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def digest_run(tree: Path, words: list[str]) -> str:
    """Return the digest of a run by the sources in `tree`: of its model, and of what its rounds report."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedwcm", "run", *words, "--device", "cpu", "--out", f"{folder}/run"]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        process = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        if process.returncode:
            raise SystemExit(f"{' '.join(words)}: {process.stderr}")
        run = Path(folder, "run")
        digest = hashlib.sha256()
        for name, values in sorted(load_file(run / "model.safetensors").items()):
            digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            digest.update(json.dumps([record.get(key) for key in COMPARED]).encode())
        return digest.hexdigest()


def write_table(folder: Path) -> Path:
    """Write a table of 600 rows, four numbers each, with a label and one of eight clients; return its path."""
    rng = np.random.default_rng(0)
    labels = rng.choice(4, 600, p=(0.6, 0.25, 0.1, 0.05))
    values = rng.normal(size=(600, 4)) + np.eye(4)[labels]
    clients = rng.integers(0, 8, 600)
    rows = zip(values, labels, clients, strict=True)
    lines = [",".join([*(f"{v:.5f}" for v in x), f"c{label}", f"site{k}"]) for x, label, k in rows]
    path = folder / "table.csv"
    path.write_text("\n".join(["a,b,c,d,label,client", *lines]) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
