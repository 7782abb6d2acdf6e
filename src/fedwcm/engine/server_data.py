"""Samples of the server's own: what methods with `ServerTraining` run and differentiate models on."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedwcm.core.batch import Inputs
from fedwcm.core.types import Vec
from fedwcm.engine.evaluate import CHUNK
from fedwcm.engine.network import Network


@dataclass(frozen=True, eq=False)
class ServerSamples:
    """The server's samples and the buffers of the global model.

    All models are in evaluation mode: as they will be tested, without dropout, and nothing of them is changed.
    """

    network: Network
    inputs: Inputs
    labels: Tensor
    buffers: Vec = field(default_factory=lambda: torch.zeros(0))

    @torch.no_grad()
    def outputs(self, w: Vec, buffers: Vec | None = None) -> tuple[Tensor, Tensor]:
        self._load(w, self.buffers if buffers is None else buffers)
        chunks = [self._run(self.inputs[i : i + CHUNK]) for i in range(0, len(self.labels), CHUNK)]
        logits, features = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        return logits, features

    @torch.enable_grad()
    def gradient(self, w: Vec, rows: Tensor, loss: Callable[[Tensor], Tensor]) -> Vec:
        self._load(w, self.buffers)
        logits, _ = self._run(self.inputs.index_select(0, rows))
        parameters = [parameter for _, parameter in self.network.parameters]
        by_parameters = torch.autograd.grad(loss(logits), parameters, materialize_grads=True)
        return self.network.layout.flatten(by_parameters)

    def _load(self, w: Vec, buffers: Vec) -> None:
        self.network.module.eval()
        self.network.point_parameters(w.clone())  # nn.Embedding(max_norm=…) writes to its weights when it is run
        self.network.point_buffers(buffers.clone())

    def _run(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits, features = self.network(inputs)
        return self.network.logit_scale(logits, features), features
