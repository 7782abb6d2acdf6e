"""Run the grid, or go on with it: `python -m benchmarks.recipe.run choose|judge|final --part 0/2`.

Each part is a process that appends a line per finished run to `runs/recipe/PHASE-PART.jsonl`; a run that is
there, or in `results/recipe/PHASE.jsonl.gz`, is not repeated. `python -m benchmarks.recipe.run collect` adds the
first to the second.

`final` is judged once. `python -m benchmarks.recipe.run freeze` writes the digest of its runs, with all their
options, and of the data to `results/recipe/final.json`; `final` runs nothing that this file does not describe.
"""

import argparse
import gzip
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch

import fedwcm
from benchmarks.recipe import grid
from fedwcm.engine.rounds import DivergedError

RUNS, RESULTS = Path("runs/recipe"), Path("results/recipe")
PHASES = ("choose", "judge", "final")
FROZEN = RESULTS / "final.json"
KEPT = {
    **{key: key for key in ("round", "test_accuracy", "few")},
    "plain_accuracy": "last_round_accuracy",
    "plain_few": "last_round_few",
}
"""Keys of the collected results, with the metric that each holds."""


def jobs(phase: str) -> list[tuple[str, str, int]]:
    """Return all runs of a phase in the order of running: cell, arm and seed."""
    runs = [
        (cell, arm, seed)
        for cells, arms, seeds in grid.blocks(phase)
        for seed in seeds
        for cell in cells
        for arm in arms
    ]
    return list(dict.fromkeys(runs))


def finished(phase: str) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return the runs that are done."""
    collected = RESULTS / f"{phase}.jsonl.gz"
    lines = gzip.decompress(collected.read_bytes()).decode().splitlines() if collected.exists() else []
    lines += [line for path in sorted(RUNS.glob(f"{phase}-*.jsonl")) for line in path.read_text().splitlines()]
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return {(r["cell"], r["arm"], r["seed"]): r for r in records}


def settings_of(phase: str, cell: str, arm: str, seed: int) -> dict[str, Any]:
    """Return the options of a run."""
    return {**grid.cells(phase)[cell], **grid.ARMS[phase][arm], "run.seed": seed}


def described(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the name of the data's file in place of its path."""
    return {**settings, "data.dataset": Path(settings["data.dataset"]).name}


def freeze(phase: str) -> dict[str, Any]:
    """Return the digest of a phase's runs, in the order of running, and those of the files of data."""
    runs = [(*job, described(settings_of(phase, *job))) for job in jobs(phase)]
    paths = {Path(str(cell["data.dataset"])) for cell in grid.cells(phase).values()}
    data = {path.name: _sha256(path.read_bytes()) for path in sorted(paths) if path.suffix}
    return {"runs": len(runs), "digest": _sha256(json.dumps(runs, sort_keys=True).encode()), "data": data}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def run_cell(phase: str, cell: str, arm: str, seed: int) -> dict[str, Any]:
    """Run an arm in a cell."""
    began, clock = time.perf_counter(), time.process_time()
    settings = settings_of(phase, cell, arm, seed)
    job = {"cell": cell, "arm": arm, "seed": seed, "settings": described(settings)}
    try:
        result = fedwcm.run(settings=settings)
    except DivergedError as error:
        return {**job, "diverged": str(error), "history": []}
    last = result.history[-1]
    return {
        **job,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - clock,
        "parameters": result.summary.parameters,
        "bytes_up": last.bytes_up,
        "bytes_down": last.bytes_down,
        "history": [{key: getattr(record, metric) for key, metric in KEPT.items()} for record in result.history],
    }


def main() -> None:
    """Run a part of a phase, or collect the results of all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=(*PHASES, "freeze", "collect"))
    parser.add_argument("--part", default="0/1", help="which share of the runs: 0/2, 1/2")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.what == "collect":
        return collect()
    if chosen.what == "freeze":
        FROZEN.write_text(json.dumps(freeze("final"), indent=2) + "\n", encoding="utf-8")
        return None
    if chosen.what == "final" and json.loads(FROZEN.read_text(encoding="utf-8")) != freeze("final"):
        raise ValueError(f"{FROZEN} describes other runs or other data: the final phase is judged as frozen")
    part, parts = map(int, chosen.part.split("/"))
    RUNS.mkdir(parents=True, exist_ok=True)
    done = finished(chosen.what)
    for job in [job for job in jobs(chosen.what) if job not in done][part::parts]:
        if job not in finished(chosen.what):
            record = run_cell(chosen.what, *job)
            with (RUNS / f"{chosen.what}-{part}.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")


def collect() -> None:
    """Write the results of every phase, compressed."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for phase in PHASES:
        done = finished(phase)
        lines = [json.dumps(done[job]) for job in jobs(phase) if job in done]
        if lines:
            content = ("\n".join(lines) + "\n").encode()
            (RESULTS / f"{phase}.jsonl.gz").write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    main()
