"""`fedwcm.export`: a trained model in one file, for programs without this package."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from fedwcm.api.arguments import Folder, ModelLike
from fedwcm.api.mix import Mix, require_one_mix
from fedwcm.api.trained import load_trained, read_model_facts, schema_of
from fedwcm.core.checks import require, unknown
from fedwcm.core.torch_rng import default_torch_modes
from fedwcm.experiment.files import replacing
from fedwcm.experiment.folder import RunFolder
from fedwcm.models.facts import ModelFacts
from fedwcm.models.predictor import OUTPUTS, Predictor, RawInputModel, raw_shape

Format = Literal["onnx", "torchscript", "state-dict"]

TOLERANCE = 1e-5
"""Largest difference, relative to the largest logit, at which an export counts as the same model."""

TRIED_BATCHES = (1, 2, 5)
"""Batch sizes on which an export is compared with the model."""

Run = Callable[[Tensor], NDArray[np.float32]]
"""Gives the logits of raw inputs."""


@default_torch_modes()
def export(
    folder: Folder,
    format: Format,
    out: str | Path,
    *,
    model: ModelLike | None = None,
    trust: bool = False,
    mix: Mix | None = None,
) -> Path:
    """Write the model of a run to a file that needs nothing of this package, and check it.

    The normaliser and the names of the classes are inside. The input, `input`, is raw data as the training data
    were before they were normalised: images `(n, height, width, channels)`, tables `(n, features)` in the order of
    `feature_names`, sequences `(n, steps, channels)`, for any n; the outputs are `logits` and `probabilities`.
    ONNX and TorchScript are compared with the model on random inputs, and a difference above 1e-5 is an error.

    Args:
        folder: the run's folder, or its result.
        format: `onnx` (needs `fedwcm[export]`), `torchscript`, or `state-dict`: weights, mean and std alone, in a
            safetensors file.
        out: the file to write.
        model: what takes the trained weights, as in `fedwcm.load_model`.
        trust: import the factory that the folder names as `package.module:factory`.
        mix: the class distribution that the model will meet, as in `fedwcm.load_model`.

    Returns:
        The file.
    """
    if format not in WRITERS:
        raise unknown("format", format, WRITERS)
    if format == "onnx":
        _require_onnx()
    require(format != "state-dict" or mix is None, "mix", mix, "none for a state dict, which holds weights alone")
    facts, path = read_model_facts(RunFolder(Path(folder))), Path(out)
    raw = RawInputModel(load_trained(Path(folder), model, trust, require_one_mix(mix)).module, facts).eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft, _quiet():
        run = WRITERS[format](raw, _samples(facts, 2), _metadata(facts), draft)
        if run is not None:
            _require_equal(raw, run, facts)
    return path


def _metadata(facts: ModelFacts) -> dict[str, str]:
    """Return the names of classes and inputs, and all facts about the model, as JSON."""
    features = schema_of(facts).encoding.feature_names
    return {
        "classes": json.dumps(facts.classes),
        "feature_names": json.dumps(features),
        "fedwcm": json.dumps(facts.to_json()),
    }


def _samples(facts: ModelFacts, count: int) -> Tensor:
    """Return random raw inputs of the training data's type; small numbers, as an embedding may be small."""
    dtype, shape = np.dtype(schema_of(facts).dtype), (count, *raw_shape(facts))
    rng = np.random.default_rng(count)
    if facts.keeps_integers:
        return torch.from_numpy(rng.integers(0, 2, shape))
    if dtype == np.uint8:
        return torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))
    values = rng.normal(size=shape) * np.array(facts.std) + np.array(facts.mean)
    return torch.from_numpy(values.astype(np.float32))


def _write_onnx(raw: RawInputModel, inputs: Tensor, metadata: dict[str, str], path: Path) -> Run:
    import onnxruntime

    program = torch.onnx.export(
        raw,
        (inputs,),
        input_names=["input"],
        output_names=list(OUTPUTS),
        dynamic_shapes={"input": {0: torch.export.Dim("batch")}},
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(metadata)
    program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = session.run([OUTPUTS[0]], {"input": x.numpy()})[0]
        return logits

    return run


def _write_torchscript(raw: RawInputModel, inputs: Tensor, metadata: dict[str, str], path: Path) -> Run:
    traced = torch.jit.trace(raw, (inputs,))
    files = {f"{name}.json": text for name, text in metadata.items()}
    torch.jit.save(traced, path, _extra_files=files)
    loaded = torch.jit.load(path)

    def run(x: Tensor) -> NDArray[np.float32]:
        with torch.no_grad():
            logits: NDArray[np.float32] = loaded(x)[0].numpy()
        return logits

    return run


def _write_state_dict(raw: RawInputModel, inputs: Tensor, metadata: dict[str, str], path: Path) -> None:
    module = raw.model.model if isinstance(raw.model, Predictor) else raw.model
    tensors = {name: value.clone().contiguous() for name, value in module.state_dict().items()}
    save_file({**tensors, "normalizer.mean": raw.mean, "normalizer.std": raw.std}, path, metadata=metadata)


WRITERS: dict[str, Callable[[RawInputModel, Tensor, dict[str, str], Path], Run | None]] = {
    "onnx": _write_onnx,
    "torchscript": _write_torchscript,
    "state-dict": _write_state_dict,
}


def _require_equal(raw: RawInputModel, run: Run, facts: ModelFacts) -> None:
    """Compare what was written with the model, on batches of several sizes."""
    for count in TRIED_BATCHES:
        inputs = _samples(facts, count)
        with torch.no_grad():
            expected = raw(inputs)[0].numpy()
        scale = max(1.0, float(np.abs(expected).max()))
        difference = float(np.abs(run(inputs) - expected).max()) / scale
        if not difference <= TOLERANCE:
            raise ValueError(
                f"the exported model differs from the trained one by {difference:.2g} on a batch of {count}: "
                "nothing was written. A forward pass that depends on the values or the number of its inputs "
                "cannot be exported"
            )


def _require_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ImportError(f"export to onnx needs {', '.join(missing)}: pip install 'fedwcm[export]'")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's own log messages and warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
