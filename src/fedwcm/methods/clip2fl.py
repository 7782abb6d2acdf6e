"""CLIP2FL: CReFF whose federated features are also drawn towards a teacher's embedding of their class.

Shi, Zheng, Yin, Lu, Xie, Qu. CLIP-guided Federated Learning on Heterogeneous and Long-Tailed Data. AAAI 2024.
(Read: the abstract, this project's notes and the authors' public code, shijiangming1/CLIP2FL.)

The server's part: CReFF's loss of the federated features F gets a second term, with e_c the teacher's unit vector
for class c (CLIP's embedding of "a photo of a …"), over all features of all classes:

    loss = Σ_c D(…)  +  contrast · mean_v CE((v·e_1, …, v·e_C) / temperature, class of v)

The clients' part is the loss `distillation`; `--method clip2fl` is both together. In a file, `method.name =
"clip2fl"` needs `loss.name = "distillation"` beside it. Both read `teacher`, a file made once for a data set by
`python -m fedwcm.teacher`. contrast = 0 is CReFF and needs no teacher.

v·e_c asks for embeddings as long as the features. That code puts a linear layer from 256 to CLIP's 512 into the
model; ResNet-18 has 512 features as it is. For any other model the embeddings are turned at random into the space
of the features, which keeps their products e_b·e_c, hence all that the term knows of the classes, exactly if there
are as many features as classes, and else as well as possible. Nothing is lost: the clients' models never see
these embeddings, and so have no directions of their own that would fit to CLIP's.

Departures. That code compares v with `features` copies of each e_c and leaves out the copy at v's own place in the
list, a relic of contrasting samples with each other; it weighs the own class by 99/100. Its versions have
contrast from 0.001 to 0.5.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fedwcm.core.checks import require
from fedwcm.core.layout import Layout
from fedwcm.core.types import Population, State, Vec
from fedwcm.methods.creff import CReFF
from fedwcm.teacher import TEACHER_FILE, Teacher


@dataclass(frozen=True, kw_only=True)
class CLIP2FL(CReFF):
    """CReFF with a contrastive term towards class embeddings.

    Args:
        teacher: the file with the teacher's class embeddings.
        contrast: weight of the contrastive term; 0 is CReFF.
        temperature: of the contrastive term.
    """

    name: ClassVar[str] = "clip2fl"

    teacher: str = TEACHER_FILE
    contrast: float = 0.001
    temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.contrast >= 0, "contrast", self.contrast, "non-negative")
        require(self.temperature > 0, "temperature", self.temperature, "positive")

    def init(self, x: Vec, population: Population) -> State:
        if not self.contrast:
            return {}
        teacher = Teacher.read(self.teacher)
        teacher.require_classes(population.classes, self.teacher)
        return {"embeddings": normalize(teacher.embeddings.to(x), dim=-1)}

    def first_state(self, x: Vec, s: State, layout: Layout, rng: torch.Generator) -> State:
        s = super().first_state(x, s, layout, rng)
        if not self.contrast:
            return s
        return {**s, "embeddings": turned(s["embeddings"], s["features"].shape[-1], rng)}

    def feature_loss(self, features: Tensor, s: State, probed: State) -> Tensor:
        loss = super().feature_loss(features, s, probed)
        if not self.contrast:
            return loss
        likeness = features @ s["embeddings"].T / self.temperature
        classes = torch.arange(len(features), device=features.device)[:, None].expand(likeness.shape[:2])
        return loss + self.contrast * cross_entropy(likeness.mT, classes)


def turned(embeddings: Tensor, d: int, rng: torch.Generator) -> Tensor:
    """The embeddings `(C, e)` in `d` dimensions: as they are if e = d, else turned at random, products kept."""
    if embeddings.shape[1] == d:
        return embeddings
    left, lengths, _ = torch.linalg.svd(embeddings, full_matrices=False)
    kept = min(len(lengths), d)
    noise = torch.randn(d, kept, generator=rng, dtype=embeddings.dtype).to(embeddings.device)
    axes = torch.linalg.qr(noise).Q
    rows: Tensor = (left[:, :kept] * lengths[:kept]) @ axes.T
    return rows
