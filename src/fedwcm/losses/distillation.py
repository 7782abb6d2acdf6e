"""Distillation: cross-entropy plus the divergence from a teacher's predictions. CLIP2FL's client loss.

Shi, Zheng, Yin, Lu, Xie, Qu. CLIP-guided Federated Learning on Heterogeneous and Long-Tailed Data. AAAI 2024.
Sources: shijiangming1/CLIP2FL (the authors' code). The second term is from Hinton, Vinyals, Dean. Distilling the
Knowledge in a Neural Network. 2015.

    loss = CE(z, y) + alpha · T² · KL(softmax(t / T) ‖ softmax(z / T)),        T = `temperature`

z are the model's logits, t the teacher's for the sample without augmentation: for CLIP, 100 times the cosine of
the embeddings of the image and of "a photo of a …". They do not change, so they are computed once per data set
(`python -m fedwcm.teacher`) and looked up by the index of the sample in the training set. The logits of any other
model can be used too. alpha = 0 is cross-entropy and needs no teacher.

With the method `clip2fl` this is the recipe `clip2fl`. Versions of the authors' code use alpha = 1 or 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fedwcm.core.batch import Batch, LocalData, Outputs
from fedwcm.core.checks import Needs
from fedwcm.core.ranges import NonNegative, Positive
from fedwcm.core.types import Clients, Context, Population, State
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.teacher import TEACHER_FILE, Teacher


@dataclass(frozen=True, kw_only=True)
class Distillation(CrossEntropy):
    """Cross-entropy with distillation from a teacher.

    Args:
        teacher: file with the teacher's logits for every training sample.
        alpha: weight of the distillation; 0 is cross-entropy.
        temperature: T, the divisor of both the teacher's and the model's logits.
    """

    name: ClassVar[str] = "distillation"
    needs: ClassVar[Mapping[str, Needs]] = dict.fromkeys(
        ("teacher", "temperature"), Needs(lambda loss: loss.alpha > 0, "alpha > 0")
    )

    teacher: str = TEACHER_FILE
    alpha: NonNegative = 1.0
    temperature: Positive = 3.0

    @property
    def uses_teacher(self) -> bool:
        return self.alpha > 0

    def check_data(self, fingerprint: str) -> None:
        if self.uses_teacher:
            self._loaded_teacher.require_data(fingerprint, self.teacher)

    def init_client(self, clients: Clients, population: Population) -> State:
        if self.uses_teacher:
            self._loaded_teacher.require_classes(population.classes, self.teacher)
        return {}

    def prepare(self, local: LocalData, ctx: Context) -> State:
        if self.uses_teacher:
            for batch in local.batches():
                self._loaded_teacher.require_samples(batch.sample_ids, batch.labels, self.teacher)
        return {}

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, o = super().__call__(outputs, batch, o, ctx)
        if not self.uses_teacher:
            return loss, o
        teacher_logits = self._logits_like(outputs.logits)[batch.sample_ids]
        teacher = log_softmax(teacher_logits / self.temperature, dim=-1)
        student = log_softmax(outputs.logits / self.temperature, dim=-1)
        divergence = (teacher.exp() * (teacher - student)).sum(dim=-1)
        return loss + self.alpha * self.temperature**2 * batch.mean(divergence), o

    def _logits_like(self, like: Tensor) -> Tensor:
        """Return the teacher's logits where the model's are: to look them up elsewhere, every step would wait."""
        if like.device not in self._copies:
            self._copies[like.device] = self._loaded_teacher.logits.to(like)
        return self._copies[like.device]

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor]:
        return {}

    @cached_property
    def _loaded_teacher(self) -> Teacher:
        return Teacher.read(self.teacher)
