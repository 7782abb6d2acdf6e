"""Teachers: the logits of a frozen model, such as CLIP, for every training sample of a data set.

    python -m fedwcm.teacher --dataset cifar10            # writes teacher.safetensors
    fedwcm run --method clip2fl --dataset cifar10         # reads it

CLIP runs once over the whole training set, through the package open_clip. Every run on this data set can use the
file, whatever its long tail and partition, as long as the same samples are held out for testing. To use a teacher
of your own, call `Teacher.of(dataset, logits, embeddings).write(path)`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

if TYPE_CHECKING:
    from PIL.Image import Image

    from fedwcm.data import Dataset

TEACHER_FILE = "teacher.safetensors"
PROMPT = "a photo of a {}"
SHARPNESS = 100.0
"""Factor from the cosine similarity to CLIP's logits: the scale it was trained with."""

CHUNK = 64
"""Images per forward pass; affects memory only."""


@dataclass(frozen=True, eq=False)
class Teacher:
    """Logits `(n, C)` for every training sample, in data set order, and one embedding per class.

    `labels (n,)` are the true classes of the samples, and `fingerprint` is that of the data set: both tell whether
    a file belongs to the data of a run. A client that sees its own samples only can compare the labels alone.
    """

    logits: Tensor
    embeddings: Tensor
    labels: Tensor
    fingerprint: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for tensors whose shapes do not match, and for numbers that are not finite."""
        if self.logits.dim() != 2 or self.labels.shape != self.logits.shape[:1]:
            raise ValueError(
                f"a teacher's logits {tuple(self.logits.shape)} and labels {tuple(self.labels.shape)} must be "
                "(samples, classes) and (samples,)"
            )
        if self.embeddings.dim() != 2 or len(self.embeddings) != self.logits.shape[1]:
            raise ValueError(
                f"a teacher's embeddings {tuple(self.embeddings.shape)} must be (classes, dimensions), "
                f"with {self.logits.shape[1]} classes like its logits"
            )
        for name, table in (("logits", self.logits), ("embeddings", self.embeddings)):
            bad = torch.nonzero(~torch.isfinite(table).all(dim=1)).flatten()
            if len(bad):
                raise ValueError(
                    f"a teacher's {name} have a NaN or an infinity in {len(bad)} rows, the first {int(bad[0])}: "
                    "they must be finite"
                )

    @classmethod
    def of(cls, dataset: "Dataset", logits: Tensor, embeddings: Tensor) -> Self:
        """Return the teacher of a data set's training samples."""
        from fedwcm.data.fingerprint import fingerprint

        return cls(logits, embeddings, torch.from_numpy(dataset.y_train), fingerprint(dataset))

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a teacher from a file."""
        if not Path(path).exists():
            raise FileNotFoundError(
                f"there is no teacher file {path}: make one with "
                f"python -m fedwcm.teacher --dataset NAME --out {path}"
            )
        try:
            with safe_open(path, "pt") as file:
                fingerprint = (file.metadata() or {}).get("fingerprint", "")
            return cls(**load_file(path), fingerprint=fingerprint)
        except (SafetensorError, TypeError) as error:
            raise ValueError(f"{path} is not a teacher file with logits, embeddings and labels: {error}") from None

    def write(self, path: str | Path, facts: dict[str, object] | None = None) -> None:
        """Save the teacher, with `facts` about its origin as metadata."""
        tensors = {"logits": self.logits, "embeddings": self.embeddings, "labels": self.labels}
        save_file(
            {key: value.cpu().contiguous() for key, value in tensors.items()},
            path,
            metadata={"fedwcm": json.dumps(facts or {}), "fingerprint": self.fingerprint},
        )

    def require_classes(self, classes: int, path: str) -> None:
        """Raise ValueError for data with a different number of classes."""
        if self.logits.shape[1] != classes:
            raise ValueError(f"{path} is a teacher for {self.logits.shape[1]} classes, but the data has {classes}")

    def require_samples(self, ids: Tensor, labels: Tensor, path: str) -> None:
        """Raise ValueError unless the file has samples with these ids and these labels."""
        ids, labels = ids.cpu(), labels.cpu()
        if int(ids.max()) >= len(self.labels) or not torch.equal(self.labels[ids], labels):
            raise _made_for_other_samples(path)

    def require_data(self, fingerprint: str, path: str) -> None:
        """Raise ValueError unless the file was made for this data set: on data in order of class, the labels of
        other samples are the same.
        """
        if self.fingerprint != fingerprint:
            raise _made_for_other_samples(path)


def _made_for_other_samples(path: str) -> ValueError:
    return ValueError(
        f"{path} was made for different training samples: make it again with the data set, the test fraction, the "
        "image size and the seed of this run"
    )


class Encoder(Protocol):
    """A model that embeds images and texts in one space."""

    def images(self, images: NDArray[np.uint8]) -> Tensor:
        """Return the embeddings of images `(n, height, width, channels)`."""
        ...

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings of texts."""
        ...


class OpenClip:
    """CLIP from the package open_clip; `weights` is one of its tags or a file."""

    def __init__(self, model: str, weights: str, device: str) -> None:
        open_clip = _open_clip()
        try:
            module, _, self._prepare = open_clip.create_model_and_transforms(
                model, pretrained=weights, device=device
            )
            self._tokenize = open_clip.get_tokenizer(model)
        except (OSError, RuntimeError, ValueError) as error:
            raise FileNotFoundError(
                f"CLIP {model!r} with the weights {weights!r} cannot be loaded: {error}. The weights of a tag are "
                "downloaded on first use; without a network, fetch them elsewhere and pass --weights FILE"
            ) from error
        self._module, self._device = module.eval(), device

    def images(self, images: NDArray[np.uint8]) -> Tensor:
        pixels = torch.stack([self._prepare(picture(image)) for image in images])
        embeddings: Tensor = self._module.encode_image(pixels.to(self._device))
        return embeddings

    def texts(self, texts: Sequence[str]) -> Tensor:
        embeddings: Tensor = self._module.encode_text(self._tokenize(list(texts)).to(self._device))
        return embeddings


def zero_shot(dataset: "Dataset", encoder: Encoder, prompt: str = PROMPT) -> Teacher:
    """Return the encoder's zero-shot logits for the training images, from the class names alone."""
    if not dataset.is_image or dataset.x_train.dtype != np.uint8:
        kind = f"{dataset.x_train.dtype} of shape {dataset.x_train.shape}"
        raise ValueError(f"{dataset.name} is {kind}: CLIP reads 8-bit images only")
    images, names = dataset.x_train, [name.replace("_", " ") for name in dataset.classes]
    with torch.no_grad():
        classes = normalize(encoder.texts([prompt.format(name) for name in names]).float(), dim=-1)
        chunks = []
        for start in tqdm(range(0, len(images), CHUNK), unit="batch", disable=None):
            embeddings = normalize(encoder.images(images[start : start + CHUNK]).float(), dim=-1)
            chunks.append((SHARPNESS * embeddings @ classes.T).cpu())
    return Teacher.of(dataset, torch.cat(chunks), classes.cpu())


def picture(image: NDArray[np.uint8]) -> "Image":
    """Return a grey or colour image `(height, width, channels)` as the RGB image that CLIP's transform expects."""
    from PIL.Image import fromarray

    return fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("RGB")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a teacher file; return the exit code, 0 or (after an error message) 2."""
    from fedwcm.data import load_dataset

    chosen = _parser().parse_args(arguments)
    try:
        encoder = OpenClip(chosen.model, chosen.weights, chosen.device)
        dataset = load_dataset(
            chosen.dataset,
            data_dir=chosen.data_dir,
            label=chosen.label,
            image_size=chosen.image_size,
            test_fraction=chosen.test_fraction,
            seed=chosen.seed,
        )
        teacher = zero_shot(dataset, encoder, chosen.prompt)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    facts = {"dataset": dataset.name, "classes": list(dataset.classes), "prompt": chosen.prompt}
    teacher.write(chosen.out, {**facts, "model": chosen.model, "weights": chosen.weights})
    correct = (teacher.logits.argmax(dim=-1) == teacher.labels).double().mean()
    print(f"{chosen.out}: {len(teacher.labels)} samples, {float(correct):.1%} of them classified correctly")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fedwcm.teacher",
        description="Classify a data set's training samples with CLIP, for clip2fl.",
    )
    parser.add_argument(
        "--dataset", required=True, help="as in fedwcm run: a named data set, a folder of images, …"
    )
    parser.add_argument("--data-dir", help="folder to search first for named data sets")
    parser.add_argument("--label", help="label column of a data set from the hub")
    parser.add_argument("--image-size", type=int, help="side of the square images, as in the runs")
    parser.add_argument(
        "--test-fraction", type=float, default=0.2, help="fraction held out for testing, as in the runs"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of that split, as in the runs")
    parser.add_argument("--model", default="ViT-B-32-quickgelu", help="a model of open_clip (%(default)s)")
    parser.add_argument("--weights", default="openai", help="a tag of open_clip or a file (%(default)s)")
    parser.add_argument("--prompt", default=PROMPT, help="text for a class, with {} for its name (%(default)s)")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="%(default)s here"
    )
    parser.add_argument("--out", default=TEACHER_FILE, help="file to write (%(default)s)")
    return parser


def _open_clip() -> Any:
    try:
        return import_module("open_clip")
    except ImportError as error:
        raise ImportError(
            "CLIP runs through the package open_clip: pip install open_clip_torch. It is needed only to make a "
            "teacher file, not to train with one"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
