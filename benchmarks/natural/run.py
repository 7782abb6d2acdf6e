"""Train every arm on every set, and measure each at all strengths of the correction afterwards.

    FEDWCM_NATURAL=… python -m benchmarks.natural.run choose --seeds 0,1
    python -m benchmarks.natural.run freeze        # before judging: the digest of what will run
    python -m benchmarks.natural.run judge --seeds 100,101,102,103,104

A finished run is a line of `results/natural/PHASE.jsonl`, with its configuration, and is not repeated. `choose`
looks at validation data only; `judge` at test data, at strengths and temperatures fitted on validation data.
"""

import argparse
import hashlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedwcm
from benchmarks.natural.arms import ARMS, COMMON, JUDGED
from benchmarks.natural.sets import FILES, FOLDER, NaturalSet, available, load
from fedwcm.engine.rounds import DivergedError

RESULTS = Path("results/natural")
FROZEN = RESULTS / "judge.json"
STRENGTHS = tuple(np.round(np.arange(-2.5, 2.51, 0.25), 2).tolist())
"""How often log p is subtracted from the logits: 0 leaves the model as it was trained.

The lines of `judge.jsonl`, and older ones of `choose.jsonl`, have -1 to 2: too few for balanced batches with a
prior, which correct twice.
"""


def run_arm(name: str, data: NaturalSet, arm: str, seed: int, phase: str) -> dict[str, Any]:
    """Train an arm on a set; return its curves on validation data and, if it is judged, on test data."""
    settings = {**COMMON, **data.settings, **ARMS[arm], "run.seed": seed}
    job = {"set": name, "arm": arm, "seed": seed, "settings": settings}
    with tempfile.TemporaryDirectory() as folder:
        try:
            # Validation data stands in for test data: nothing sees the latter before `judge`.
            dataset = (*data.train, *data.val)
            fedwcm.run(settings=settings, dataset=dataset, clients=data.clients, out=f"{folder}/run", report=False)
        except DivergedError as error:
            return {**job, "diverged": str(error)}
        parts = {"val": data.val, **({"test": data.test} if phase == "judge" else {})}
        log_p = {part: log_probabilities(f"{folder}/run", x) for part, (x, _) in parts.items()}
        calibrated = calibrated_errors(f"{folder}/run", data) if phase == "judge" else {}
    counts = np.bincount(data.train[1], minlength=log_p["val"].shape[1])
    curves = {part: curve(log_p[part], y, counts) for part, (_, y) in parts.items()}
    if data.settings:  # balanced, by construction: each class weighted by its share in the training
        weights = {part: counts[y] / np.bincount(y)[y] for part, (_, y) in parts.items()}
        curves |= {f"{part}, natural": curve(log_p[part], parts[part][1], counts, weights[part]) for part in parts}
    return {**job, **curves, **calibrated}


def calibrated_errors(folder: str, data: NaturalSet) -> dict[str, dict[str, float]]:
    """Return the calibration error on test data of a model whose temperature was fitted to validation data.

    It is used for the class mix that the test has by design: that of the training, or all classes alike.
    """
    fedwcm.calibrate(folder, data.val)
    x, y = data.test
    counts, tested = np.bincount(data.train[1]), np.bincount(y)
    errors = {}
    for mix in ("natural", "uniform"):
        weight = (counts if mix == "natural" else np.ones(len(counts)))[y] / tested[y]
        probabilities = fedwcm.predict(folder, x, mix=mix).probabilities.astype(np.float64)
        own = np.ones(len(y)) if mix == "natural" and not data.settings else weight
        errors[mix] = round(calibration_error(probabilities, y, own), 5)
    return {"calibrated": errors}


def log_probabilities(folder: str, x: NDArray[Any]) -> NDArray[np.float64]:
    """Return log p(class | sample) as a run's model says it."""
    probabilities = fedwcm.predict(folder, x).probabilities.astype(np.float64)
    logarithms: NDArray[np.float64] = np.log(np.maximum(probabilities, 1e-12))
    return logarithms


def curve(
    log_p: NDArray[np.float64], y: NDArray[Any], counts: NDArray[np.int64], weight: NDArray[Any] | None = None
) -> list[dict[str, float]]:
    """Return accuracy, balanced accuracy, that of the rarest third, and calibration, at every strength.

    `weight` says how often each sample counts, where classes are to have another mix than they have here.
    """
    prior = np.log(np.maximum(counts, 0.5) / counts.sum())
    rare = np.argsort(counts)[: max(1, round(len(counts) / 3))]
    weight = np.ones(len(y)) if weight is None else weight
    points = []
    for tau in STRENGTHS:
        shifted = log_p - tau * prior
        recalls = {c: float((shifted[y == c].argmax(axis=1) == c).mean()) for c in np.unique(y)}
        probabilities = np.exp(shifted - np.logaddexp.reduce(shifted, axis=1, keepdims=True))
        right, found = shifted.argmax(axis=1) == y, [recalls[c] for c in rare if c in recalls]
        point = {
            "tau": tau,
            "accuracy": np.average(right, weights=weight),
            "balanced": np.mean(list(recalls.values())),
            "rare": np.mean(found) if found else np.nan,
            "nll": np.average(-np.log(probabilities[np.arange(len(y)), y] + 1e-12), weights=weight),
            "ece": calibration_error(probabilities, y, weight),
        }
        points.append({key: round(float(value), 5) for key, value in point.items()})
    return points


def calibration_error(
    probabilities: NDArray[np.float64], y: NDArray[Any], weight: NDArray[Any], bins: int = 15
) -> float:
    """Return the expected calibration error of the predicted classes."""
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == y
    gaps = np.bincount((confidence * bins).astype(int).clip(0, bins - 1), weights=weight * (correct - confidence))
    return float(np.abs(gaps).sum() / weight.sum())


def finished(phase: str) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return the runs that are done."""
    path = RESULTS / f"{phase}.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(record["set"], record["arm"], record["seed"]): record for record in records}


def frozen_description() -> dict[str, Any]:
    """Return the digests of what is judged: arms with all options, and the files of data."""
    arms = {arm: {**COMMON, **ARMS[arm]} for arm in JUDGED}
    text = json.dumps(arms, sort_keys=True).encode()
    files = {name: (FOLDER / FILES[name]).read_bytes() for name in available()}
    data = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return {"arms": hashlib.sha256(text).hexdigest(), "names": list(JUDGED), "data": data}


def main() -> None:
    """Run a phase, or freeze what will be judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("choose", "freeze", "judge"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--sets", default=",".join(available()))
    parser.add_argument("--arms", help="separated by commas; by default all, or those that are judged")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    RESULTS.mkdir(parents=True, exist_ok=True)
    if chosen.phase == "freeze":
        FROZEN.write_text(json.dumps(frozen_description(), indent=2) + "\n", encoding="utf-8")
        return
    if chosen.phase == "judge" and json.loads(FROZEN.read_text(encoding="utf-8")) != frozen_description():
        raise ValueError(f"{FROZEN} describes other arms or other data: what is judged was frozen before")
    done = finished(chosen.phase)
    arms = chosen.arms.split(",") if chosen.arms else list(ARMS if chosen.phase == "choose" else JUDGED)
    for seed in map(int, chosen.seeds.split(",")):
        for name in chosen.sets.split(","):
            data = load(name, seed)
            for arm in arms:
                if (name, arm, seed) not in done:
                    record = run_arm(name, data, arm, seed, chosen.phase)
                    with (RESULTS / f"{chosen.phase}.jsonl").open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                    print(name, arm, seed, flush=True)


if __name__ == "__main__":
    main()
