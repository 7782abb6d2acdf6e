"""The floor: nothing but the matrix products of a round of linear layers, by the library that this package takes.

    python -m benchmarks.contenders.products JOB ROUNDS threads|processes N
    python -m benchmarks.contenders.products JOB ROUNDS evaluation N

Models of a process are stacked and take all their steps on one batch: no samples are gathered, no loss, no
activation, no message. It learns nothing. `evaluation` is the products of one model on the test samples, by N
threads.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from benchmarks.contenders.plain import Worker, play
from benchmarks.data import TEST_SAMPLES
from benchmarks.gate import Gate
from benchmarks.training import arguments, load, make_model, quality
from fedwcm.engine.evaluate import CHUNK
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


@torch.no_grad()
def evaluate(weights: Sequence[Tensor], chunks: int) -> None:
    """Form the products of a model on so many chunks of samples."""
    batches = [torch.zeros(1, CHUNK, weight.shape[1]) for weight in weights]
    for _ in range(chunks):
        for weight, batch in zip(weights, batches, strict=True):
            affine(batch, weight[None], None)


def play_evaluations() -> None:
    """Play rounds that are nothing but the products of an evaluation."""
    job, rounds, (_, count) = arguments()
    gate, model, cores = Gate(), make_model(job), int(count)
    torch.set_num_threads(1)
    weights = [layer.weight.detach() for layer in model.modules() if isinstance(layer, nn.Linear)]
    with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for _ in range(rounds):
            gate.wait()
            list(pool.map(lambda _: evaluate(weights, TEST_SAMPLES // CHUNK // cores), range(cores)))
    gate.finish(**quality(model, load(job)))


if __name__ == "__main__":
    play_evaluations() if "evaluation" in sys.argv else play(Products)
