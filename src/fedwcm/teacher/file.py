"""The logits of a teacher for every training sample, and an embedding of every class, in one file."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

if TYPE_CHECKING:
    from fedwcm.data import Dataset

TEACHER_FILE = "teacher.safetensors"
DIGEST = re.compile(r"#([0-9a-f]{16})$")
"""What follows the name of a teacher's file in the configuration of a run: a digest of what it held then."""


@runtime_checkable
class Taught(Protocol):
    """A method or loss that may read a teacher's file."""

    @property
    def teacher(self) -> str: ...

    @property
    def uses_teacher(self) -> bool: ...


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
        """Read a teacher from a file; if its name is followed by a digest, only if it still holds the same."""
        path, digest = _parse_digest(str(path))
        if not Path(path).exists():
            raise FileNotFoundError(
                f"there is no teacher file {path}: make one with "
                f"python -m fedwcm.teacher --dataset NAME --out {path}"
            )
        try:
            if digest and _digest(path) != digest:
                raise ValueError(f"{path} has changed since: it is not the teacher that the run had")
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


def with_digest(name: str) -> str:
    """Return the name of a teacher's file with a digest of what it holds; the name alone if there is no file."""
    path = file_of(name)
    return f"{path}#{_digest(path)}" if Path(path).exists() else name


def file_of(name: str) -> str:
    """Return the name of a teacher's file without the digest that may follow it."""
    return _parse_digest(name)[0]


def _parse_digest(name: str) -> tuple[str, str]:
    digest = DIGEST.search(name)
    return (name[: digest.start()], digest[1]) if digest else (name, "")


def _digest(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def _made_for_other_samples(path: str) -> ValueError:
    return ValueError(
        f"{path} was made for different training samples: make it again with the data set, the test fraction, the "
        "image size and the seed of this run"
    )
