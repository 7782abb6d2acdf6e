"""Write the data of the jobs, once, for all contenders: the same samples, divided among the same clients.

    python -m benchmarks.data J1 J2 J3

The division and the normalisation are this package's own, so that it trains on exactly what the others load.
"""

import json
import sys

import numpy as np
from numpy.typing import NDArray

from benchmarks.jobs import CLASSES, JOBS, SEED, Job
from fedwcm.config.settings import from_settings
from fedwcm.core.rng import model_seed
from fedwcm.data import load_dataset
from fedwcm.experiment.partitioning import partition_data
from fedwcm.models import build_model

TEST_SAMPLES = 10_000
ABOUT = "about.json"

Samples = tuple[NDArray[np.generic], NDArray[np.int64], NDArray[np.generic], NDArray[np.int64]]


def main() -> None:
    """Write the data of the jobs that are named, unless they are there or need none."""
    for name in sys.argv[1:]:
        job = JOBS[name]
        if not job.addressed and not (job.folder / ABOUT).exists():
            write(job)


def write(job: Job) -> None:
    """Write the samples as this package reads them, then as everybody else does."""
    job.folder.mkdir(parents=True, exist_ok=True)
    source, (x_train, y_train, x_test, y_test) = _samples(job)
    np.savez(job.folder / "own.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    divided = partition_data(from_settings(job.settings()))
    np.save(job.folder / "inputs.npy", divided.normalizer(divided.dataset.x_train))
    np.save(job.folder / "labels.npy", divided.dataset.y_train)
    np.save(job.folder / "clients.npy", np.stack(divided.parts))
    model = build_model(job.model, job.input_shape, CLASSES, model_seed(SEED), **job.model_options)
    about = {
        "source": source,
        "test_samples": len(y_test),
        "data_bytes": job.data_bytes(len(y_test)),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    (job.folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")


def _samples(job: Job) -> tuple[str, Samples]:
    """As many samples as the clients hold, and their source: synthetic ones where the data set is missing."""
    rng = np.random.default_rng(SEED)
    count = job.clients * job.samples
    if job.dataset is None:
        return "synthetic", _synthetic(job, count, rng)
    try:
        dataset = load_dataset(job.dataset, download=False)
    except FileNotFoundError:
        source = f"synthetic, in the shape of {job.dataset}, which is not on this machine"
        return source, _synthetic(job, count, rng)
    kept = rng.permutation(len(dataset.y_train))[:count]
    return job.dataset, (dataset.x_train[kept], dataset.y_train[kept], dataset.x_test, dataset.y_test)


def _synthetic(job: Job, count: int, rng: np.random.Generator) -> Samples:
    """Noise around a centre for each class: rows of a table, or images of bytes."""
    channels_last = (*job.input_shape[1:], job.input_shape[0])
    centres = rng.normal(size=(CLASSES, *channels_last)).astype(np.float32)
    labels = rng.integers(CLASSES, size=count + TEST_SAMPLES)
    inputs = centres[labels] + rng.standard_normal((len(labels), *channels_last), dtype=np.float32)
    samples: NDArray[np.generic] = inputs
    if len(job.input_shape) > 1:
        samples = np.clip(inputs * 32 + 128, 0, 255).astype(np.uint8)
    return samples[:count], labels[:count], samples[count:], labels[count:]


if __name__ == "__main__":
    main()
