"""The floor: nothing but the matrix products of a round of linear layers, by the library that this package takes.

    python -m benchmarks.contenders.products JOB ROUNDS threads|processes N

Models of a process are stacked and take all their steps on one batch: no samples are gathered, no loss, no
activation, no message. It learns nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.contenders.plain import Worker, play
from fedwcm.engine.fast.products import affine, multiply, put_product


class Products(Worker):
    """Multiplies for as many clients as it is given."""

    def train(self, x: list[Tensor], clients: Sequence[int]) -> None:
        """Form the products of all steps: forward, for the weights and, but for the first layer, the inputs."""
        size, samples = self.job.batch_size, self.job.samples
        layers = [layer.weight.detach() for layer in self.model.modules() if isinstance(layer, nn.Linear)]
        weights = [weight.repeat(len(clients), 1, 1) for weight in layers]
        batches = [torch.zeros(len(clients), size, weight.shape[2]) for weight in weights]
        slopes = [torch.zeros(len(clients), size, weight.shape[1]) for weight in weights]
        with torch.no_grad():
            for _ in range(self.job.epochs * -(-samples // size)):
                for i, (weight, batch, slope) in enumerate(zip(weights, batches, slopes, strict=True)):
                    affine(batch, weight, None)
                    put_product(weight, slope, batch, add=True)
                    if i:
                        multiply(slope, weight)


if __name__ == "__main__":
    play(Products)
