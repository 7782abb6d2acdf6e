"""Distillation: cross-entropy, and agreement with what a teacher says of the same samples. CLIP2FL's client loss.

Shi, Zheng, Yin, Lu, Xie, Qu. CLIP-guided Federated Learning on Heterogeneous and Long-Tailed Data. AAAI 2024.
(Read: the abstract, this project's notes and the authors' public code, shijiangming1/CLIP2FL.) The second term is
Hinton, Vinyals, Dean. Distilling the Knowledge in a Neural Network. 2015.

    loss = CE(z, y) + alpha · T² · KL(softmax(t / T) ‖ softmax(z / T)),        T = `temperature`

z are the model's logits, t the teacher's for the sample as it is, without augmentation: for CLIP 100 times the
cosine of the embeddings of the image and of "a photo of a …". They do not change, so they are computed once for a
data set (`python -m fedwcm.teacher`) and looked up by the number of the sample in its training part. Any other
model's logits do as well. alpha = 0 is cross-entropy and needs no teacher.

With the method `clip2fl` this is the recipe `clip2fl`. Versions of that code have alpha 1 or 2.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import log_softmax

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.checks import require
from fedwcm.core.local_data import LocalData
from fedwcm.core.types import Clients, Context, Population, State
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.teacher import TEACHER_FILE, Teacher


@dataclass(frozen=True, kw_only=True)
class Distillation(CrossEntropy):
    """Cross-entropy with a teacher.

    Args:
        teacher: the file with the teacher's logits for every training sample.
        alpha: weight of the teacher; 0 is cross-entropy.
        temperature: T, by which both sides' logits are divided.
    """

    name: ClassVar[str] = "distillation"

    teacher: str = TEACHER_FILE
    alpha: float = 1.0
    temperature: float = 3.0

    def __post_init__(self) -> None:
        require(self.alpha >= 0, "alpha", self.alpha, "non-negative")
        require(self.temperature > 0, "temperature", self.temperature, "positive")

    def init_client(self, clients: Clients, population: Population) -> State:
        if self.alpha:
            self._taught.require_classes(population.classes, self.teacher)
        return {}

    def prepare(self, local: LocalData, ctx: Context) -> State:
        if self.alpha:
            for batch in local.batches():
                self._taught.require_samples(batch.sample_ids, batch.labels, self.teacher)
        return {}

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, o = super().__call__(outputs, batch, o, ctx)
        if not self.alpha:
            return loss, o
        said = self._taught.logits[batch.sample_ids.cpu()].to(outputs.logits)
        theirs = log_softmax(said / self.temperature, dim=-1)
        ours = log_softmax(outputs.logits / self.temperature, dim=-1)
        divergence = (theirs.exp() * (theirs - ours)).sum(dim=-1)
        return loss + self.alpha * self.temperature**2 * batch.mean(divergence), o

    @cached_property
    def _taught(self) -> Teacher:
        return Teacher.read(self.teacher)
