"""The second judgement: `auto` by several draws of validation people, on thirteen tails, with seeds never used.

    python -m benchmarks.natural.second draws --seeds 0,1,2,3,4,5,6,7,8,9    # on validation data: the rule
    python -m benchmarks.natural.second freeze                              # the digest of what is judged
    python -m benchmarks.natural.second judge --seeds 200,201,…             # test data, once
    python -m benchmarks.natural.second tables

A finished run is a line of `results/natural/draws.jsonl` or `second.jsonl`, and is not repeated. In the judgement
the candidates of `auto` are trained with four draws of validation data, also for a quarter of the rounds. Only the
runs of the first draw, which a user gets, see test data.
"""

import argparse
import hashlib
import json
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.natural.arms import ARMS, COMMON, JUDGED, RACE, TRIED
from benchmarks.natural.run import RESULTS, run_arm
from benchmarks.natural.second_tables import plain, print_tables
from benchmarks.natural.sets import DIRICHLET, FILES, FOLDER, load
from benchmarks.natural.tables import NATURAL
from benchmarks.recipe.data import FOLDER as RECIPES

FROZEN = RESULTS / "second.json"
DRAWS = 4
PARTS = {f"{part}{mix}" for part in ("val", "test") for mix in ("", NATURAL)}
Key = tuple[str, str, int, int]
Job = tuple[str, int, int, list[str]]


def jobs(phase: str, seeds: list[int]) -> Iterator[Job]:
    """Yield each set, seed and draw, with the arms to train."""
    for seed in seeds:
        for name in (*FILES, *DIRICHLET):
            yield name, seed, 0, [*JUDGED, *RACE.values()]
            if phase == "judge" and name in FILES:  # the others have one validation part
                for draw in range(1, DRAWS):
                    yield name, seed, draw, [*TRIED, *RACE.values()]


def finished(phase: str) -> dict[Key, dict[str, Any]]:
    """Return the runs that are done."""
    path = RESULTS / f"{'second' if phase == 'judge' else phase}.jsonl"
    records = [_unpack(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    return {(one["set"], one["arm"], one["seed"], one["draw"]): one for one in records}


def _pack(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its curves by column; one without test data has only what `auto` reads, as trained."""
    tests = any(part.startswith("test") for part in record)
    packed = dict(record)
    for part in record.keys() & PARTS:
        points = record[part] if tests else [record[part][plain(record[part])]]
        packed[part] = {key: [point[key] for point in points] for key in points[0]}
    return packed


def _unpack(record: dict[str, Any]) -> dict[str, Any]:
    columns = {part: record[part] for part in record.keys() & PARTS}
    rows = {part: zip(*column.values(), strict=True) for part, column in columns.items()}
    return record | {part: [dict(zip(columns[part], row, strict=True)) for row in rows[part]] for part in rows}


def run(phase: str, seeds: list[int]) -> None:
    """Train what is missing."""
    done = finished(phase)
    for name, seed, draw, arms in jobs(phase, seeds):
        data = load(name, seed, draw)
        for arm in arms:
            if (name, arm, seed, draw) in done:
                continue
            tested = phase == "judge" and draw == 0 and arm in JUDGED
            record = {**run_arm(name, data, arm, seed, "judge" if tested else "choose"), "draw": draw}
            with (RESULTS / f"{'second' if phase == 'judge' else phase}.jsonl").open(
                "a", encoding="utf-8"
            ) as file:
                file.write(json.dumps(_pack(record)) + "\n")
        print(name, seed, draw, flush=True)


def frozen_description() -> dict[str, Any]:
    """Return the digests of what is judged: arms with all options, and the files of data."""
    arms = {arm: {**COMMON, **ARMS[arm]} for arm in (*JUDGED, *RACE.values())}
    paths = {name: FOLDER / file for name, file in FILES.items()}
    parts = ("fashion-mnist-choose", "fashion-mnist-final", "cifar10-choose", "cifar10-final", "cifar100-judge")
    paths |= {part: RECIPES / f"{part}.npz" for part in parts}
    data = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}
    text = json.dumps(arms, sort_keys=True).encode()
    return {"arms": hashlib.sha256(text).hexdigest(), "names": list(arms), "draws": DRAWS, "data": data}


def main() -> None:
    """Run a phase, freeze what will be judged, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("draws", "freeze", "judge", "tables"))
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if chosen.phase == "freeze":
        FROZEN.write_text(json.dumps(frozen_description(), indent=2) + "\n", encoding="utf-8")
    elif chosen.phase == "tables":
        print_tables(finished("draws"), finished("judge"))
    else:
        if chosen.phase == "judge" and json.loads(FROZEN.read_text(encoding="utf-8")) != frozen_description():
            raise ValueError(f"{FROZEN} describes other arms or other data: what is judged was frozen before")
        run(chosen.phase, [int(seed) for seed in chosen.seeds.split(",")])


if __name__ == "__main__":
    main()
