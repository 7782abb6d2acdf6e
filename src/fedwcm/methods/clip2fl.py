"""CLIP2FL: CReFF with a contrastive term that pulls federated features towards a teacher's class embeddings.

Shi, Zheng, Yin, Lu, Xie, Qu. CLIP-guided Federated Learning on Heterogeneous and Long-Tailed Data. AAAI 2024.
Sources: shijiangming1/CLIP2FL (the authors' code).

On the server, CReFF's loss of the federated features F gets a second term over all features v of all classes, with
e_c the teacher's unit vector for class c (CLIP's embedding of "a photo of a …"):

    loss = Σ_c D(…)  +  contrast · mean_v CE((v·e_1, …, v·e_C) / temperature, class of v)

On the clients, the loss is `distillation`. `--method clip2fl` selects both; in a configuration file, `method.name
= "clip2fl"` needs `loss.name = "distillation"` next to it. Both read `teacher`, a file made once per data set by
`python -m fedwcm.teacher`. contrast = 0 is CReFF and needs no teacher.

v·e_c requires embeddings of the same dimension as the features. The authors' code adds a linear layer from 256 to
CLIP's 512 dimensions to the model; ResNet-18 already has 512 features. For any other model, the embeddings are
rotated at random into the feature space. This preserves their products e_b·e_c, which are all that the term uses:
exactly if there are at least as many features as classes, otherwise as well as possible. Nothing is lost, because
the clients' models never see these embeddings and have no directions that would match CLIP's.

Departures: the authors' code compares v with `features` copies of each e_c and leaves out the copy at v's own
position in the list, a leftover of contrasting samples with each other; it weights the sample's own class by
99/100. Its versions use contrast from 0.001 to 0.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fedwcm.core.checks import Needs
from fedwcm.core.ranges import NonNegative, Positive
from fedwcm.core.types import Layout, Population, State, Vec
from fedwcm.methods.creff import CReFF
from fedwcm.teacher import TEACHER_FILE, Teacher


@dataclass(frozen=True, kw_only=True)
class CLIP2FL(CReFF):
    """CReFF with a contrastive term towards class embeddings.

    Args:
        teacher: file with the teacher's class embeddings.
        contrast: weight of the contrastive term; 0 is CReFF.
        temperature: temperature of the contrastive term.
    """

    name: ClassVar[str] = "clip2fl"
    needs: ClassVar[Mapping[str, Needs]] = dict.fromkeys(
        ("teacher", "temperature"), Needs(lambda method: method.contrast > 0, "contrast > 0")
    )

    teacher: str = TEACHER_FILE
    contrast: NonNegative = 0.001
    temperature: Positive = 0.1

    @property
    def uses_teacher(self) -> bool:
        return self.contrast > 0

    def init(self, x: Vec, population: Population) -> State:
        if not self.uses_teacher:
            return {}
        teacher = Teacher.read(self.teacher)
        teacher.require_classes(population.classes, self.teacher)
        return {"embeddings": normalize(teacher.embeddings.to(x), dim=-1)}

    def first_state(self, x: Vec, s: State, layout: Layout, rng: torch.Generator) -> State:
        s = super().first_state(x, s, layout, rng)
        if not self.uses_teacher:
            return s
        return {**s, "embeddings": rotate(s["embeddings"], s["features"].shape[-1], rng)}

    def feature_loss(self, features: Tensor, s: State, probed: State) -> Tensor:
        loss = super().feature_loss(features, s, probed)
        if not self.uses_teacher:
            return loss
        similarity = features @ s["embeddings"].T / self.temperature
        classes = torch.arange(len(features), device=features.device)[:, None].expand(similarity.shape[:2])
        return loss + self.contrast * cross_entropy(similarity.mT, classes)


def rotate(embeddings: Tensor, d: int, rng: torch.Generator) -> Tensor:
    """Return the embeddings `(C, e)` in `d` dimensions: unchanged if e = d, else rotated, preserving products."""
    if embeddings.shape[1] == d:
        return embeddings
    left, lengths, _ = torch.linalg.svd(embeddings, full_matrices=False)
    kept = min(len(lengths), d)
    noise = torch.randn(d, kept, generator=rng, dtype=embeddings.dtype).to(embeddings.device)
    axes = torch.linalg.qr(noise).Q
    rows: Tensor = (left[:, :kept] * lengths[:kept]) @ axes.T
    return rows
