"""CLIP as a teacher: zero-shot logits of images, from the names of their classes."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from fedwcm.teacher.file import Teacher

if TYPE_CHECKING:
    from PIL.Image import Image

    from fedwcm.data import Dataset

PROMPT = "a photo of a {}"


SHARPNESS = 100.0
"""Factor from the cosine similarity to CLIP's logits: the scale it was trained with."""


CHUNK = 64
"""Images per forward pass; affects memory only."""


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


def _open_clip() -> Any:
    try:
        return import_module("open_clip")
    except ImportError as error:
        raise ImportError(
            "CLIP runs through the package open_clip: pip install open_clip_torch. It is needed only to make a "
            "teacher file, not to train with one"
        ) from error
